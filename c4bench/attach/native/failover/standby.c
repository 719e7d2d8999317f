/* A queue pair that was left is in the error state. Both ends reset it, say so, connect it again, and prove the way by a write of
   no bytes, which also shows whether the other NIC reaches its peer before that is needed. Once the program's own NIC has been
   well for a while, the pair goes back to it. */
#include "standby.h"

#include "../say.h"
#include "balance.h"
#include "fence.h"
#include "keeper.h"

#include <stdio.h>

enum { PACKETS = 1 << 24, NO_PACKET = PACKETS, MS = 1000000 };
/* Before a side that failed is tried again, at first and at most; while the peer does not answer; while an answer is awaited. */
static const uint64_t PAUSE_NS = 250 * MS, LONGEST_PAUSE_NS = 4000ull * MS, AGAIN_NS = 100 * MS, LOOK_NS = 5 * MS;
/* For how long it must be well, and how long nothing outstanding is waited for, before the pair goes back. */
static const uint64_t WELL_NS = 500 * MS, QUIET_NS = 1000ull * MS;
/* How old the newest proof may be when it does. */
static const uint64_t FRESH_NS = 50 * MS;

uint32_t standby_draw(const struct pair *pair)
{
	static uint64_t drawn;
	uint64_t seed = keeper_now_ns() ^ (uint64_t)pair->qp[OWN]->qp_num << 40 ^ ++drawn << 20;

	seed = (seed ^ seed >> 31) * 0x9E3779B97F4A7C15ull;
	seed = (seed ^ seed >> 29) * 0xBF58476D1CE4E5B9ull;
	return (uint32_t)(seed >> 32) % PACKETS;
}

static int connect_twin(struct pair *pair, struct ibv_qp_attr *receive)
{
	union ibv_gid gid;
	struct ibv_ah_attr *ah = &receive->ah_attr;
	int index = nic_twin_gid(pair->nic, ah->port_num, ah->grh.sgid_index, &gid);

	receive->dest_qp_num = pair->peer.twin_number;
	ah->grh.dgid = pair->peer.twin_gid;
	ah->grh.sgid_index = (uint8_t)index;
	return index >= 0;
}

static int side_of(const struct pair *pair)
{
	return side_beside(pair->send_side);
}

/* What was posted to a shared receive queue that was left is still there. */
int standby_may_be_used(const struct pair *pair)
{
	return !pair->nic->down[side_of(pair)] && (!pair->pool || !pair->moves);
}

int standby_connect(struct pair *pair, uint32_t peers_packet)
{
	struct ibv_qp_attr receive = pair->to_receive;
	int side = side_of(pair);

	pair->beginning = (struct beginning){pair->packets[side], peers_packet};
	if (side == TWIN && !connect_twin(pair, &receive))
		return 0;
	receive.rq_psn = peers_packet;
	pair->sending[side] = 0;
	pair->connected[side] = !pair_change(pair->qp[side], &receive, pair->receives_as);
	return pair->connected[side] && standby_enable(pair, side);
}

int standby_enable(struct pair *pair, int side)
{
	struct ibv_qp_attr send = pair->to_send;

	if (!pair->sends_as || !pair->connected[side] || pair->sending[side])
		return 1;
	send.sq_psn = pair->packets[side];
	pair->sending[side] = !pair_change(pair->qp[side], &send, pair->sends_as);
	pair->standby.proven = 0; /* by a write of its own, from now on */
	pair->connected[side] &= pair->sending[side];
	return pair->sending[side];
}

void standby_begin(struct pair *pair, uint64_t now_ns)
{
	pair->standby = (struct standby){.next_ns = now_ns + LOOK_NS, .pause_ns = PAUSE_NS};
	pair->probes++; /* an answer to an earlier one is none */
	pair->probe = NO_PROBE;
}

void standby_lost(struct pair *pair)
{
	struct standby *standby = &pair->standby;
	uint64_t pause_ns = standby->pause_ns ? standby->pause_ns : PAUSE_NS;

	*standby = (struct standby){.next_ns = keeper_now_ns() + pause_ns, .pause_ns = pause_ns};
	standby->pause_ns = 2 * pause_ns < LONGEST_PAUSE_NS ? 2 * pause_ns : LONGEST_PAUSE_NS;
	pair->probes++; /* an answer to an earlier one is none */
	pair->probe = NO_PROBE;
}

static void tell_again(struct pair *pair, uint64_t now_ns)
{
	char word[64];

	snprintf(word, sizeof word, "again %u %u", pair->moves, pair->packets[side_of(pair)]);
	fence_tell(pair, word);
	pair->standby.said_ns = now_ns;
}

/* Returns 0 where the device does not take it: its port may be down. */
static int make_ready(struct pair *pair, uint32_t own_packet)
{
	int side = side_of(pair);

	pair->connected[side] = 0;
	pair->packets[side] = own_packet;
	pair->standby.made_ready = !pair_set(pair->qp[side], IBV_QPS_RESET) &&
				   !pair_change(pair->qp[side], &pair->init, pair->init_as);
	return pair->standby.made_ready;
}

int standby_connect_again(struct pair *pair, struct beginning beginning)
{
	return standby_may_be_used(pair) && make_ready(pair, beginning.own) && standby_connect(pair, beginning.peers);
}

int standby_make_ready(struct pair *pair)
{
	pair->beginning = (struct beginning){standby_draw(pair), NO_PACKET};
	return make_ready(pair, pair->beginning.own);
}

/* The side does not work (yet): everything about it begins again, after a while. */
static void try_later(struct pair *pair)
{
	pair_set(pair->qp[side_of(pair)], IBV_QPS_ERR);
	pair->connected[side_of(pair)] = 0;
	standby_lost(pair);
}

static uint64_t step_unconnected(struct pair *pair, uint64_t now_ns)
{
	struct standby *standby = &pair->standby;

	if (now_ns < standby->next_ns)
		return standby->next_ns;
	if (pair->nic->down[side_of(pair)]) {
		standby->next_ns = now_ns + PAUSE_NS;
		return standby->next_ns;
	}
	if (!standby->made_ready && !make_ready(pair, standby_draw(pair))) {
		try_later(pair);
		return standby->next_ns;
	}
	if (standby->told) {
		tell_again(pair, now_ns);
		if (!standby_connect(pair, standby->told_packet))
			try_later(pair);
		else
			standby->next_ns = now_ns + LOOK_NS;
		return standby->next_ns;
	}
	if (now_ns >= standby->said_ns + AGAIN_NS)
		tell_again(pair, now_ns);
	return standby->said_ns + AGAIN_NS;
}

/* The answer is in the completion queue, where the program may not look. */
static void look_for_answer(struct pair *pair)
{
	int owned = queue_enter(pair->send_queue);

	queue_drain(pair->send_queue);
	queue_leave(pair->send_queue, owned);
}

static uint64_t step_unproven(struct pair *pair, uint64_t now_ns)
{
	struct standby *standby = &pair->standby;
	int side = side_of(pair);

	if (now_ns < standby->next_ns)
		return standby->next_ns;
	standby->next_ns = now_ns + LOOK_NS;
	if (!pair->moves && pair->peer.knows < CONNECTED)
		return standby->next_ns;
	if (!pair->sending[side]) {
		standby->proven = 1; /* nothing is sent there, so its peer's proof is enough */
		standby->proven_ns = now_ns;
		return standby->next_ns;
	}
	if (pair->probe == NO_PROBE) {
		if (pair_probe(pair, side))
			try_later(pair);
		return standby->next_ns;
	}
	look_for_answer(pair);
	if (pair->probe == ANSWERED) {
		standby->proven = 1;
		standby->proven_ns = standby->proven_ns ? standby->proven_ns : now_ns;
		standby->answered_ns = now_ns;
	} else if (pair->probe == UNANSWERED) {
		say("%s does not reach the peer: a failure of %s is an error until it does", pair->nic->context[side]->device->name,
		    pair->nic->context[pair->send_side]->device->name);
		try_later(pair);
	}
	return standby->next_ns;
}

/* The peer's NIC may have failed since. */
static void prove_again(struct pair *pair, uint64_t now_ns)
{
	pair->standby.proven = 0;
	pair->standby.next_ns = now_ns;
	pair->probes++;
	pair->probe = NO_PROBE;
}

/* To the side where the pair belongs, at once where it has just been connected. Nothing is lost where requests are outstanding,
   but fewer are given twice where none are. */
static uint64_t step_home(struct pair *pair, uint64_t now_ns)
{
	int shared = balance_is_shared(pair), is_first = shared && !pair->placed;
	uint64_t since_ns = pair->standby.proven_ns, well_ns = is_first ? balance_patience_ns(pair) : WELL_NS;
	const struct numbers *sends = &pair->sends.at;

	if (shared && !is_first && balance_since_ns() > since_ns)
		since_ns = balance_since_ns();
	if (now_ns < since_ns + well_ns)
		return since_ns + well_ns;
	pair->placed = 1;
	if (!balance_prefers_other(pair))
		return 0;
	if (!is_first && sends->done != sends->head && now_ns <= since_ns + well_ns + QUIET_NS)
		return now_ns + LOOK_NS;
	if (!pair->sending[side_of(pair)] || now_ns <= pair->standby.answered_ns + FRESH_NS)
		fence_leave_side(pair, now_ns);
	else
		prove_again(pair, now_ns);
	return now_ns + LOOK_NS;
}

uint64_t standby_step(struct pair *pair, uint64_t now_ns)
{
	if (pair->pool && pair->moves)
		return 0;
	if (!pair->connected[side_of(pair)])
		return step_unconnected(pair, now_ns);
	if (!pair->standby.proven)
		return step_unproven(pair, now_ns);
	return step_home(pair, now_ns);
}

void standby_hear(struct pair *pair, const char *word)
{
	struct standby *standby = &pair->standby;
	uint32_t moves, packet;

	if (sscanf(word, "again %u %u", &moves, &packet) != 2 || moves != pair->moves || pair->state != READY)
		return;
	if (standby->told && standby->told_packet == packet) {
		if (pair->connected[side_of(pair)] && keeper_now_ns() > standby->said_ns + AGAIN_NS / 2)
			tell_again(pair, keeper_now_ns());
		return;
	}
	if (pair->connected[side_of(pair)]) {
		try_later(pair); /* the peer says it again */
		return;
	}
	standby->told = 1;
	standby->told_packet = packet;
	standby->next_ns = keeper_now_ns();
}
