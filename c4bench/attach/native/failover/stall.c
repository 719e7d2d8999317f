/* A NIC may try for seconds before it gives up. A path is dead once the packet that the peer expects is the same in three answers
   in a row, unless that packet waits for a receive that the peer's program has not posted yet. */
#include "stall.h"

#include "fence.h"
#include "keeper.h"
#include "pools.h"

#include <stdio.h>

enum { SAME_ANSWERS = 2, MS = 1000000 };
static const uint64_t LOOK_NS = 20 * MS;

uint64_t stall_step(struct pair *pair, uint64_t now_ns)
{
	const struct numbers *at = &pair->sends.at;
	struct stall *stall = &pair->stall;

	if (at->done == at->given || at->given == stall->carried || at->done != stall->done) {
		*stall = (struct stall){.done = at->done, .carried = stall->carried, .since_ns = now_ns};
		return now_ns + LOOK_NS;
	}
	if (now_ns >= stall->since_ns + LOOK_NS && now_ns >= stall->asked_ns + LOOK_NS) {
		fence_tell(pair, "far");
		stall->asked_ns = now_ns;
	}
	return (stall->asked_ns > stall->since_ns ? stall->asked_ns : stall->since_ns) + LOOK_NS;
}

/* What is complete counts as there, until the program looks for it. */
static void look_at(struct queue *queue)
{
	int owned = queue_enter(queue);

	queue_drain(queue);
	queue_leave(queue, owned);
}

static int has_receives(const struct pair *pair)
{
	if (pair->pool)
		return pair->pool->unused_count < pair->pool->most;
	return pair->receives.at.done < pair->receives.at.given;
}

void stall_answer(struct pair *pair)
{
	long long packet = fence_next_packet(pair);
	char word[64];

	if (packet == pair->answered)
		look_at(pair->receive_queue);
	pair->answered = packet;
	snprintf(word, sizeof word, "at %u %lld %d", pair->moves, packet, has_receives(pair));
	fence_tell(pair, word);
}

/* Whether one of the requests that are outstanding will complete: a program need not ask for a completion of each. */
static int is_awaited(const struct pair *pair)
{
	for (uint64_t number = pair->sends.at.done; number < pair->sends.at.given; number++)
		if (sends_at(&pair->sends, number)->signaled)
			return 1;
	return 0;
}

void stall_hear(struct pair *pair, const char *word)
{
	struct stall *stall = &pair->stall;
	const struct numbers *at = &pair->sends.at;
	long long packet;
	uint32_t moves;
	int receives;

	if (sscanf(word, "at %u %lld %d", &moves, &packet, &receives) != 3 || moves != pair->moves || pair->state != READY ||
	    packet < 0 || at->done == at->given || at->done != stall->done)
		return;
	uint64_t next = fence_reached(pair, packet);
	if (next == at->given && !is_awaited(pair)) {
		stall->carried = next;
		return;
	}
	stall->same = stall->packet == packet ? stall->same + 1 : 0;
	stall->packet = packet;
	int waits = next < at->given && is_told(&sends_at(&pair->sends, next)->wr) && !receives;
	if (stall->same < SAME_ANSWERS || waits)
		return;
	look_at(pair->send_queue);
	if (at->done == stall->done)
		keeper_want(pair);
}
