#define _GNU_SOURCE
#include "qp.h"

#include "real.h"
#include "say.h"
#include "table.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef int clock_function(clockid_t, struct timespec *);
typedef int query_qp_function(struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *);

enum { UNSEEN_NS = 50000 };

static clock_function *read_clock;
static uint64_t epoch_ns;
static struct table qps;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct qp *unused;

static uint64_t reading(clockid_t clock)
{
	struct timespec time;

	read_clock(clock, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* The thread that holds the lock may be none of a child's. */
static void in_child(void)
{
	pthread_mutex_init(&lock, NULL);
}

/* Past the lab's own clock_gettime, which takes readings for waiting. */
__attribute__((constructor)) static void prepare(void)
{
	void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);

	read_clock = (clock_function *)real_dlsym()(libc, "clock_gettime");
	epoch_ns = reading(CLOCK_REALTIME) - reading(CLOCK_MONOTONIC);
	bias_prepare();
	pthread_atfork(NULL, NULL, in_child);
}

uint64_t now_ns(void)
{
	return epoch_ns + reading(CLOCK_MONOTONIC);
}

static uint64_t number_key(unsigned int device, uint32_t number)
{
	return 1ull << 63 | (uint64_t)device << 32 | number;
}

struct qp *qp_of(const struct ibv_qp *handle)
{
	return table_get(&qps, (uintptr_t)handle);
}

struct qp *qp_at(unsigned int device, uint32_t number)
{
	return table_get(&qps, number_key(device, number));
}

struct qp *qp_numbered(const struct device *device, uint32_t number)
{
	return qp_at(device->number, number);
}

struct qp *qp_after(size_t *place)
{
	while (*place < TABLE_PLACES) {
		const struct place *at = &qps.places[(*place)++];
		struct qp *qp = at->value;
		if (at->key >> 63 && qp->connected && qp->records.owner == getpid())
			return qp;
	}
	return NULL;
}

void tally_add(struct tally *tally, uint64_t now)
{
	uint64_t total = tally->sums[0] += now, stride = 4;

	tally->count++;
	for (int level = 1; level < STRIDES && !(tally->count & (stride - 1)); level++, stride *= 4)
		tally->sums[level] = total;
}

/* Until when the device is known to have been in transfer: a program that computes finds late what has completed meanwhile,
   and for how long the network took is not known then. */
static uint64_t seen_until(const struct device *device, uint64_t now)
{
	uint64_t seen = device->looked_ns > device->clock_ns ? device->looked_ns : device->clock_ns;

	return device->asleep || now < seen + UNSEEN_NS ? now : seen;
}

/* The device's clock now; between two readings a queue pair in transfer gets what is known of their difference. */
static uint64_t read_shared(struct device *device, uint64_t now)
{
	if (now > device->clock_ns) {
		uint64_t passed = (seen_until(device, now) - device->clock_ns) * SHARE_UNIT;
		/* A division takes as long as all else here. */
		if (device->carried)
			device->share += device->carried == 1 ? passed : passed / device->carried;
		device->clock_ns = now;
	}
	return device->share;
}

static void enter_transfer(struct qp *qp, uint64_t now)
{
	qp->share_from = read_shared(qp->device, now);
	qp->device->carried++;
	qp->in_transfer = 1;
}

void qp_begin_transfer(struct qp *qp, uint64_t now)
{
	int owned = bias_enter(&qp->device->clock_lock);

	if (!qp->in_transfer) {
		enter_transfer(qp, now);
		qp->since_ns = now;
	}
	bias_leave(&qp->device->clock_lock, owned);
}

/* A thread that posted while another one saw the last message complete may have taken the queue pair for one in transfer
   still: then it has been in transfer since. */
void qp_note_progress(struct qp *qp, uint64_t now)
{
	struct device *device = qp->device;

	int owned = bias_enter(&device->clock_lock);

	if (!qp->in_transfer)
		enter_transfer(qp, qp->since_ns);
	uint64_t share = read_shared(device, now);
	device->asleep = 0;
	qp->shared += share - qp->share_from;
	qp->share_from = share;
	qp->progress_ns = now;
	if (qp->marks_done == qp->sent.marked) {
		qp->in_transfer = 0;
		device->carried--;
		qp->spent_ns += now - qp->since_ns;
		qp->since_ns = now;
	}
	bias_leave(&device->clock_lock, owned);
}

/* The ring of marks holds as many as the send queue. */
static int read_queue(struct qp *qp)
{
	query_qp_function *query = (query_qp_function *)real_verbs("ibv_query_qp");
	struct ibv_qp_attr attributes;
	struct ibv_qp_init_attr first;
	uint64_t places = 2;

	if (!query || query(qp->handle, &attributes, IBV_QP_CAP, &first))
		return 0;
	while (places < (uint64_t)first.cap.max_send_wr + 1)
		places *= 2;
	qp->marks = malloc(places * sizeof *qp->marks);
	qp->mark_mask = places - 1;
	qp->all_signaled = first.sq_sig_all;
	return qp->marks != NULL;
}

/* Queue pairs that are no longer used stay in memory, for a thread that publishes may still look at them. */
static struct qp *take_memory(void)
{
	struct qp *qp = unused;

	if (!qp)
		return calloc(1, sizeof *qp);
	unused = qp->next_unused;
	return qp;
}

static void give_memory(struct qp *qp)
{
	free(qp->marks);
	qp->marks = NULL;
	qp->next_unused = unused;
	unused = qp;
}

static void begin(struct qp *qp, struct ibv_qp *handle, const struct attributes *kept)
{
	qp->handle = handle;
	qp->number = handle->qp_num;
	qp->device = device_of(handle->context);
	qp->posting = qp->polling = (struct bias){0};
	qp->sent = (struct sent){0};
	qp->done = (struct mark){0, 0};
	qp->marks_done = qp->errors = qp->arrived_bytes = qp->progress_ns = qp->spent_ns = qp->published_ns = 0;
	qp->first_status = qp->first_vendor_err = 0;
	qp->arrived = qp->noticed = (struct tally){0};
	qp->in_transfer = 0;
	qp->shared = 0;
	qp->since_ns = now_ns();
	if (handle->send_cq != qp->device->queue)
		qp->device->queues++;
	qp->device->queue = handle->send_cq;
	qp->attributes = *kept;
	qp->wanted_label = NO_MOVE;
	qp->move_not_before_ns = 0;
	qp->connected = 1;
}

static int take_records(struct qp *qp, const union ibv_gid *local, const union ibv_gid *remote)
{
	qp->records = ring_take(local, qp->handle->qp_num, remote, qp->attributes.remote_number);
	return qp->records.place != NO_PLACE;
}

void qp_connect(struct ibv_qp *handle, const union ibv_gid *local, const union ibv_gid *remote, const struct attributes *kept)
{
	if (!device_of(handle->context) || !ring_ready())
		return;
	pthread_mutex_lock(&lock);
	struct qp *qp = take_memory();
	if (qp)
		begin(qp, handle, kept);
	if (qp && read_queue(qp) && take_records(qp, local, remote)) {
		table_set(&qps, number_key(qp->device->number, handle->qp_num), qp);
		table_set(&qps, (uintptr_t)handle, qp);
		qp_changed(qp, qp->since_ns);
	} else if (qp) {
		give_memory(qp);
	}
	pthread_mutex_unlock(&lock);
}

void qp_forget(struct ibv_qp *handle)
{
	pthread_mutex_lock(&lock);
	struct qp *qp = table_take(&qps, (uintptr_t)handle);
	if (qp) {
		table_take(&qps, number_key(qp->device->number, handle->qp_num));
		int owned = bias_enter(&qp->device->clock_lock);
		read_shared(qp->device, now_ns());
		qp->device->carried -= (unsigned int)qp->in_transfer;
		bias_leave(&qp->device->clock_lock, owned);
		qp->connected = 0;
		qp_publish(qp, 0);
		ring_give(&qp->records);
		give_memory(qp);
	}
	pthread_mutex_unlock(&lock);
}
