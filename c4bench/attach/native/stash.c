/* A queue has a stash from its first completion that was taken early to its end: programs have few queues, and moves of
   queue pairs are rare, so a list under one lock is enough. */
#include "stash.h"

#include "real.h"
#include "traffic.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { AT_ONCE = 32 };

struct stash {
	struct stash *next;
	struct ibv_cq *cq;
	struct ibv_wc *completions;
	int first, count, room;
};

typedef int destroy_function(struct ibv_cq *);

atomic_int stashed;
static struct stash *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct stash **find(const struct ibv_cq *cq)
{
	struct stash **place = &all;

	while (*place && (*place)->cq != cq)
		place = &(*place)->next;
	return place;
}

static struct stash *stash_of(struct ibv_cq *cq)
{
	struct stash **place = find(cq);

	if (!*place && (*place = calloc(1, sizeof **place)))
		(*place)->cq = cq;
	return *place;
}

/* Have room for AT_ONCE more. Returns 0 where there is no memory. */
static int extend(struct stash *stash)
{
	if (stash->first) {
		memmove(stash->completions, stash->completions + stash->first, (size_t)stash->count * sizeof *stash->completions);
		stash->first = 0;
	}
	if (stash->count + AT_ONCE <= stash->room)
		return 1;
	int room = 2 * stash->room + AT_ONCE;
	struct ibv_wc *larger = realloc(stash->completions, (size_t)room * sizeof *larger);
	if (!larger)
		return 0;
	stash->completions = larger;
	stash->room = room;
	return 1;
}

int stash_fill(struct device *device, struct ibv_cq *cq)
{
	int found = -1;

	pthread_mutex_lock(&lock);
	atomic_fetch_add(&stashed, 1);
	struct stash *stash = stash_of(cq);
	if (stash && extend(stash)) {
		struct ibv_wc *end = stash->completions + stash->count;
		found = device->poll_cq(cq, AT_ONCE, end);
		if (found > 0) {
			count_completions(device, end, found);
			stash->count += found;
			atomic_fetch_add(&stashed, found);
		}
	}
	atomic_fetch_sub(&stashed, 1);
	pthread_mutex_unlock(&lock);
	return found;
}

int stash_take(struct ibv_cq *cq, int most, struct ibv_wc *completions)
{
	pthread_mutex_lock(&lock);
	struct stash *stash = *find(cq);
	int found = !stash ? 0 : stash->count < most ? stash->count : most;
	if (found) {
		memcpy(completions, stash->completions + stash->first, (size_t)found * sizeof *completions);
		stash->first += found;
		stash->count -= found;
		atomic_fetch_sub(&stashed, found);
	}
	pthread_mutex_unlock(&lock);
	return found;
}

void stash_forget(struct ibv_cq *cq)
{
	pthread_mutex_lock(&lock);
	struct stash **place = find(cq), *stash = *place;
	if (stash) {
		*place = stash->next;
		atomic_fetch_sub(&stashed, stash->count);
		free(stash->completions);
		free(stash);
	}
	pthread_mutex_unlock(&lock);
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	static destroy_function *real;

	if (!real)
		real = (destroy_function *)real_verbs("ibv_destroy_cq");
	int failed = real ? real(cq) : ENOSYS;
	if (!failed)
		stash_forget(cq);
	return failed;
}
