#define _GNU_SOURCE
#include "keeper.h"

#include "../real.h"
#include "../say.h"
#include "../table.h"
#include "balance.h"
#include "fence.h"
#include "next.h"
#include "relay.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { FILES_AT_MOST = 64, LONGEST_MS = 1000, LOOK_MS = 100, MS = 1000000 };

static struct table by_handle, by_number;
static struct pair *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int bell = -1; /* what wakes the thread */

uint64_t keeper_now_ns(void)
{
	static int (*read_clock)(clockid_t, struct timespec *);
	struct timespec time;

	if (!read_clock) /* past the lab's own, which takes readings for waiting */
		read_clock = (int (*)(clockid_t, struct timespec *))real_dlsym()(dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD),
										   "clock_gettime");
	read_clock(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void keeper_lock(void)
{
	pthread_mutex_lock(&lock);
}

void keeper_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

void keeper_wait(pthread_cond_t *changed, uint64_t until_ns)
{
	uint64_t now_ns = keeper_now_ns(), left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	left_ns += (uint64_t)until.tv_nsec;
	until.tv_sec += (time_t)(left_ns / 1000000000u);
	until.tv_nsec = (long)(left_ns % 1000000000u);
	pthread_cond_timedwait(changed, &lock, &until);
}

static uint64_t number_key(const struct nic *nic, int side, uint32_t number)
{
	return 1ull << 63 | (uint64_t)nic->number << 33 | (uint64_t)side << 32 | number;
}

struct pair *pair_of(const struct ibv_qp *qp)
{
	return table_get(&by_handle, (uintptr_t)qp);
}

struct pair *keeper_numbered(const struct nic *nic, int side, uint32_t number)
{
	return table_get(&by_number, number_key(nic, side, number));
}

static void take_out(struct pair *pair)
{
	table_take(&by_handle, (uintptr_t)pair->qp[OWN]);
	for (int side = OWN; side < SIDES; side++)
		table_take(&by_number, number_key(pair->nic, side, pair->qp[side]->qp_num));
}

int keeper_add(struct pair *pair)
{
	keeper_lock();
	int known = table_set(&by_handle, (uintptr_t)pair->qp[OWN], pair);
	for (int side = OWN; side < SIDES; side++)
		known = known && table_set(&by_number, number_key(pair->nic, side, pair->qp[side]->qp_num), pair);
	if (known) {
		pair->next = all;
		all = pair;
	} else {
		take_out(pair);
	}
	keeper_unlock();
	return known;
}

/* A thread that looks at a completion of the pair has a queue's lock. */
void keeper_remove(struct pair *pair)
{
	struct pair **place = &all;
	int sends = queue_enter(pair->send_queue);
	int receives = pair->receive_queue == pair->send_queue ? 0 : queue_enter(pair->receive_queue);

	queue_forget(pair->send_queue, pair->qp[OWN]->qp_num);
	if (pair->receive_queue != pair->send_queue)
		queue_forget(pair->receive_queue, pair->qp[OWN]->qp_num);
	take_out(pair);
	pair->send_queue->away -= pair->send_side == TWIN;
	pair->receive_queue->away -= pair->receive_side == TWIN;
	if (pair->receive_queue != pair->send_queue)
		queue_leave(pair->receive_queue, receives);
	queue_leave(pair->send_queue, sends);
	while (*place && *place != pair)
		place = &(*place)->next;
	if (*place)
		*place = pair->next;
}

void keeper_wake(void)
{
	uint64_t one = 1;
	int before = errno;

	if (write(bell, &one, sizeof one) < 0)
		errno = before; /* it is ringing already */
}

void keeper_want(struct pair *pair)
{
	if (atomic_exchange(&pair->wanted, 1))
		return;
	pair->wanted_ns = keeper_now_ns();
	keeper_wake();
}

void keeper_give_up(struct pair *pair)
{
	if (!atomic_exchange(&pair->hopeless, 1))
		keeper_wake();
}

struct pair *keeper_all(void)
{
	return all;
}

void keeper_stay(const struct queue *queue)
{
	keeper_lock();
	for (struct pair *pair = all; pair; pair = pair->next) {
		if (pair->send_queue != queue && pair->receive_queue != queue)
			continue;
		fence_stay(pair);
		say("a program waits for events of completion queues: their queue pairs do not survive a failure of their NIC");
	}
	keeper_unlock();
}

void keeper_leave(const struct nic *nic)
{
	for (struct pair *pair = all; pair; pair = pair->next)
		if (pair->nic == nic) {
			fence_leave(pair);
			pair->state = PLAIN;
			pair->wanted = pair->holding = 0;
		}
}

static struct pair *pair_at(const struct end *end)
{
	struct end own, peer;

	for (struct pair *pair = all; pair; pair = pair->next) {
		if (!pair->receives_as || pair->qp[OWN]->qp_num != end->number)
			continue;
		fence_ends(pair, &own, &peer);
		if (!strcmp(own.address, end->address))
			return pair;
	}
	return NULL;
}

static void refused(const struct end *own)
{
	struct pair *pair = pair_at(own);

	if (pair)
		fence_stay(pair);
}

static void heard(const struct end *from, const struct end *to, const char *word)
{
	struct pair *pair = pair_at(to);
	struct end own, peer;

	if (!pair)
		return;
	fence_ends(pair, &own, &peer);
	if (!strcmp(peer.address, from->address) && peer.number == from->number)
		fence_hear(pair, word);
}

/* A port or a device has failed, or is back. */
static void note_event(struct nic *nic, int side, enum ibv_event_type type)
{
	int failed = type == IBV_EVENT_PORT_ERR || type == IBV_EVENT_DEVICE_FATAL;

	if (failed || type == IBV_EVENT_PORT_ACTIVE)
		nic->down[side] = failed;
	if (!failed)
		return;
	for (struct pair *pair = all; pair; pair = pair->next)
		if (pair->nic == nic && pair->send_side == side && (pair->state == READY || (pair->state == YOUNG && pair->receives_as)))
			keeper_want(pair);
}

static void read_events(struct nic *nic, int side)
{
	int (*get)(struct ibv_context *, struct ibv_async_event *) =
		(int (*)(struct ibv_context *, struct ibv_async_event *))bare_verbs("ibv_get_async_event");
	void (*acknowledge)(struct ibv_async_event *) = (void (*)(struct ibv_async_event *))bare_verbs("ibv_ack_async_event");
	struct ibv_async_event event;

	while (nic->events[side] && get && acknowledge && !get(nic->events[side], &event)) {
		note_event(nic, side, event.event_type);
		acknowledge(&event);
	}
}

/* Greet an agent that has come again. */
static void look_for_agent(uint64_t now_ns)
{
	struct end own, peer;

	if (!relay_return(now_ns))
		return;
	for (struct pair *pair = all; pair; pair = pair->next)
		if (pair->receives_as) {
			fence_ends(pair, &own, &peer);
			relay_have(&own);
		}
}

/* Wait for what may happen, at most until a time. Returns how many files there are. */
static nfds_t gather(struct pollfd files[FILES_AT_MOST])
{
	nfds_t count = 0;

	files[count++] = (struct pollfd){.fd = bell, .events = POLLIN};
	files[count++] = (struct pollfd){.fd = relay_file(), .events = POLLIN};
	for (struct nic *nic = nics_all(); nic; nic = nic->next)
		for (int side = OWN; side < SIDES && count < FILES_AT_MOST; side++)
			if (nic->events[side])
				files[count++] = (struct pollfd){.fd = nic->events[side]->async_fd, .events = POLLIN};
	return count;
}

static uint64_t step_all(void)
{
	uint64_t now_ns = keeper_now_ns(), next_ns = now_ns + (uint64_t)(!relay_there() ? LOOK_MS : LONGEST_MS) * MS;

	look_for_agent(now_ns);
	for (struct nic *nic = nics_all(); nic; nic = nic->next)
		for (int side = OWN; side < SIDES; side++)
			read_events(nic, side);
	balance_count(now_ns);
	for (struct pair *pair = all; pair; pair = pair->next) {
		uint64_t again_ns = fence_step(pair, now_ns);
		if (again_ns && again_ns < next_ns)
			next_ns = again_ns;
	}
	return next_ns;
}

static void sleep_until(uint64_t until_ns)
{
	uint64_t now_ns = keeper_now_ns(), rung, left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
	struct timespec left = {(time_t)(left_ns / 1000000000u), (long)(left_ns % 1000000000u)};
	struct pollfd files[FILES_AT_MOST];

	keeper_lock();
	nfds_t count = gather(files);
	keeper_unlock();
	if (left_ns && ppoll(files, count, &left, NULL) <= 0)
		return;
	if (read(bell, &rung, sizeof rung) < 0 && errno != EAGAIN)
		return;
}

static void *keep(void *unused)
{
	uint64_t next_ns;

	for (;;) {
		keeper_lock();
		relay_receive(heard, refused);
		next_ns = step_all();
		keeper_unlock();
		sleep_until(next_ns);
	}
	return unused;
}

static void in_forked(void)
{
	pthread_mutex_init(&lock, NULL);
}

/* Signals are the program's own threads'. */
static int start(void)
{
	sigset_t every, before;
	pthread_t thread;

	bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (bell < 0)
		return 0;
	pthread_atfork(NULL, NULL, in_forked);
	sigfillset(&every);
	pthread_sigmask(SIG_SETMASK, &every, &before);
	int failed = pthread_create(&thread, NULL, keep, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return !failed && !pthread_detach(thread);
}

int keeper_start(void)
{
	static int started;

	keeper_lock();
	if (!started)
		started = start();
	keeper_unlock();
	return started;
}
