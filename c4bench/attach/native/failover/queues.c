#include "queues.h"

#include "../say.h"
#include "../table.h"
#include "keeper.h"
#include "next.h"
#include "pairs.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { AT_ONCE = 32 };

static struct table queues;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct queue *queue_of(struct ibv_cq *cq)
{
	return table_get(&queues, (uintptr_t)cq);
}

/* A thread that polls in vain has the lock nearly always: it lets the keeper's thread go first. */
int queue_enter(struct queue *queue)
{
	atomic_fetch_add(&queue->asked, 1);
	int owned = bias_enter(&queue->lock);
	atomic_fetch_sub(&queue->asked, 1);
	return owned;
}

void queue_leave(struct queue *queue, int owned)
{
	bias_leave(&queue->lock, owned);
}

static int extend(struct queue *queue)
{
	if (queue->first + queue->count < queue->room)
		return 1;
	if (queue->first) {
		memmove(queue->stash, queue->stash + queue->first, (size_t)queue->count * sizeof *queue->stash);
		queue->first = 0;
		return 1;
	}
	int room = 2 * queue->room + AT_ONCE;
	struct ibv_wc *larger = realloc(queue->stash, (size_t)room * sizeof *larger);
	if (!larger)
		return 0;
	queue->stash = larger;
	queue->room = room;
	return 1;
}

/* Without memory for its completion a program would wait for ever. */
void queue_add(struct queue *queue, const struct ibv_wc *completion)
{
	if (!extend(queue)) {
		say("no memory for completions");
		abort();
	}
	queue->stash[queue->first + queue->count++] = *completion;
}

static int take_stashed(struct queue *queue, int most, struct ibv_wc *completions)
{
	int found = queue->count < most ? queue->count : most;

	if (found) {
		memcpy(completions, queue->stash + queue->first, (size_t)found * sizeof *completions);
		queue->first += found;
		queue->count -= found;
	}
	return found;
}

/* What one of the devices has; of it those that are for the program. */
static int take(struct queue *queue, int side, int most, struct ibv_wc *completions)
{
	int found = queue->nic->of[side].poll_cq(queue->cq[side], most, completions), kept = 0;

	for (int i = 0; i < found; i++)
		if (pair_complete(queue->nic, side, &completions[i])) {
			if (kept != i)
				completions[kept] = completions[i];
			kept++;
		}
	return found < 0 ? found : kept;
}

void queue_drain(struct queue *queue)
{
	struct ibv_wc completions[AT_ONCE];

	for (int side = OWN; side < SIDES; side++)
		for (int found = 1; found > 0;) {
			found = queue->nic->of[side].poll_cq(queue->cq[side], AT_ONCE, completions);
			for (int i = 0; i < found; i++)
				if (pair_complete(queue->nic, side, &completions[i]))
					queue_add(queue, &completions[i]);
		}
}

void queue_forget(struct queue *queue, uint32_t number)
{
	int kept = 0;

	queue_drain(queue);
	for (int i = queue->first; i < queue->first + queue->count; i++)
		if (queue->stash[i].qp_num != number)
			queue->stash[queue->first + kept++] = queue->stash[i];
	queue->count = kept;
}

/* What either device has: in turn, so that none waits for as long as the other one has some. */
static int take_next(struct queue *queue, int most, struct ibv_wc *completions)
{
	int away = atomic_load_explicit(&queue->away, memory_order_relaxed), side = away ? side_beside(queue->last) : OWN;
	int found = take(queue, side, most, completions);

	queue->last = side;
	return found || !away ? found : take(queue, side_beside(side), most, completions);
}

int queue_poll(struct ibv_cq *cq, int most, struct ibv_wc *completions)
{
	struct queue *queue = queue_of(cq);

	if (!queue)
		return nic_of(cq->context)->of[OWN].poll_cq(cq, most, completions);
	while (atomic_load_explicit(&queue->asked, memory_order_relaxed))
		sched_yield();
	int owned = bias_enter(&queue->lock);
	int found = __builtin_expect(queue->count, 0) ? take_stashed(queue, most, completions) : 0;
	if (!found)
		found = take_next(queue, most, completions);
	bias_leave(&queue->lock, owned);
	return found;
}

/* A thread that sleeps until an event of its own NIC would not see what the other one completes. */
int queue_notify(struct ibv_cq *cq, int solicited)
{
	struct queue *queue = queue_of(cq);

	if (queue && !in_child && !atomic_exchange(&queue->by_events, 1))
		keeper_stay(queue);
	if (queue && !in_child && queue->away) {
		say("ibv_req_notify_cq is refused: what completes at another NIC, as it does after a failure, has no events");
		return EOPNOTSUPP;
	}
	return nic_of(cq->context)->of[OWN].req_notify_cq(cq, solicited);
}

static void add(struct nic *nic, struct ibv_cq *own, struct ibv_cq *twin)
{
	struct queue *queue = twin ? calloc(1, sizeof *queue) : NULL;

	if (!queue) {
		say("no twin of a completion queue: what completes in it does not survive a failure");
		return;
	}
	queue->nic = nic;
	queue->cq[OWN] = own;
	queue->cq[TWIN] = twin;
	pthread_mutex_lock(&lock);
	table_set(&queues, (uintptr_t)own, queue);
	pthread_mutex_unlock(&lock);
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int size, void *of_program, struct ibv_comp_channel *channel, int vector)
{
	NEXT(ibv_create_cq, NULL);
	struct ibv_cq *cq = next(context, size, of_program, channel, vector);
	struct nic *nic = nic_of(context);

	if (cq && nic)
		add(nic, cq, next(nic->context[TWIN], size, NULL, NULL, 0));
	return cq;
}

/* What a program finds so would be requests by their numbers here. */
static int refuse_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attributes)
{
	(void)cq;
	(void)attributes;
	say("ibv_start_poll is refused with --failover for a queue of no wc_flags: ask for some, or poll it by ibv_poll_cq");
	return EOPNOTSUPP;
}

/* The twin is an ordinary one: a queue is covered where its program polls it by ibv_poll_cq. */
struct ibv_cq_ex *queue_create_extended(struct ibv_context *context, struct ibv_cq_init_attr_ex *attributes)
{
	struct ibv_cq *(*create)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int) =
		(struct ibv_cq * (*)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int))next_verbs("ibv_create_cq");
	struct nic *nic = nic_of(context);
	struct ibv_cq_ex *cq = nic->create_cq_ex(context, attributes);

	if (cq && create && !attributes->wc_flags) {
		cq->start_poll = refuse_poll;
		add(nic, ibv_cq_ex_to_cq(cq), create(nic->context[TWIN], (int)attributes->cqe, NULL, NULL, 0));
	}
	return cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	NEXT(ibv_destroy_cq, ENOSYS);
	int failed = next(cq);

	if (failed)
		return failed;
	pthread_mutex_lock(&lock);
	struct queue *queue = table_take(&queues, (uintptr_t)cq);
	pthread_mutex_unlock(&lock);
	if (queue) {
		next(queue->cq[TWIN]);
		free(queue->stash);
		free(queue);
	}
	return 0;
}

int ibv_resize_cq(struct ibv_cq *cq, int size)
{
	NEXT(ibv_resize_cq, ENOSYS);
	struct queue *queue = queue_of(cq);
	int failed = next(cq, size);

	if (!failed && queue && next(queue->cq[TWIN], size))
		say("the twin of a completion queue stays as small as it is");
	return failed;
}
