/* Each queue pair made for ibv_wr_* points to its device's functions (struct ibv_qp_ex). A request begins with what it does,
   and then says what it carries; all between wr_start and wr_complete are posted at once, by one thread. */
#include "requests.h"

#include "move.h"
#include "real.h"
#include "table.h"
#include "traffic.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct ibv_qp_ex *as_extended_function(struct ibv_qp *);

struct requests {
	struct ibv_qp_ex device; /* a copy of its functions */
	struct burst burst;
	struct qp *qp; /* for which this burst is counted, NULL for none */
};

static struct table all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct requests *requests_of(struct ibv_qp_ex *handle)
{
	return table_get(&all, (uintptr_t)&handle->qp_base);
}

static void start(struct ibv_qp_ex *handle)
{
	struct requests *requests = requests_of(handle);

	struct qp *qp = qp_of(&handle->qp_base);

	progressed();
	if (qp)
		move_if_wanted(qp);
	requests->device.wr_start(handle);
	requests->qp = qp;
	if (requests->qp)
		requests->burst = burst_begin(requests->qp);
}

static int complete(struct ibv_qp_ex *handle)
{
	struct requests *requests = requests_of(handle);
	struct qp *qp = requests->qp;
	/* Whoever starts next has another burst, and may do so as soon as this one is complete. */
	struct burst burst = requests->burst;

	requests->qp = NULL;
	if (!qp)
		return requests->device.wr_complete(handle);
	const struct sent before = qp->sent;
	burst_count(&burst);
	int failed = requests->device.wr_complete(handle);
	if (failed) {
		qp->sent = before;
		burst.noticed = 0;
	}
	burst_end(&burst);
	return failed;
}

static void give_up(struct ibv_qp_ex *handle)
{
	struct requests *requests = requests_of(handle);
	struct qp *qp = requests->qp;
	struct burst burst = requests->burst;

	requests->qp = NULL;
	requests->device.wr_abort(handle);
	if (qp) {
		burst.noticed = 0;
		burst_end(&burst);
	}
}

/* The requests, each with the device's own function. */
static const struct ibv_qp_ex *add(struct ibv_qp_ex *handle, enum work work)
{
	struct requests *requests = requests_of(handle);

	if (requests->qp)
		burst_add(&requests->burst, work, handle->wr_flags & IBV_SEND_SIGNALED, 0);
	return &requests->device;
}

static void rdma_write(struct ibv_qp_ex *handle, uint32_t key, uint64_t address)
{
	add(handle, PLAIN)->wr_rdma_write(handle, key, address);
}

static void rdma_write_imm(struct ibv_qp_ex *handle, uint32_t key, uint64_t address, __be32 immediate)
{
	add(handle, NOTICED)->wr_rdma_write_imm(handle, key, address, immediate);
}

static void rdma_read(struct ibv_qp_ex *handle, uint32_t key, uint64_t address)
{
	add(handle, READ)->wr_rdma_read(handle, key, address);
}

static void send(struct ibv_qp_ex *handle)
{
	add(handle, NOTICED)->wr_send(handle);
}

static void send_imm(struct ibv_qp_ex *handle, __be32 immediate)
{
	add(handle, NOTICED)->wr_send_imm(handle, immediate);
}

static void send_inv(struct ibv_qp_ex *handle, uint32_t key)
{
	add(handle, NOTICED)->wr_send_inv(handle, key);
}

static void compare_and_swap(struct ibv_qp_ex *handle, uint32_t key, uint64_t address, uint64_t compare, uint64_t swap)
{
	add(handle, PLAIN)->wr_atomic_cmp_swp(handle, key, address, compare, swap);
}

static void fetch_and_add(struct ibv_qp_ex *handle, uint32_t key, uint64_t address, uint64_t value)
{
	add(handle, PLAIN)->wr_atomic_fetch_add(handle, key, address, value);
}

static void bind_window(struct ibv_qp_ex *handle, struct ibv_mw *window, uint32_t key, const struct ibv_mw_bind_info *bound)
{
	add(handle, PLAIN)->wr_bind_mw(handle, window, key, bound);
}

static void invalidate(struct ibv_qp_ex *handle, uint32_t key)
{
	add(handle, PLAIN)->wr_local_inv(handle, key);
}

/* What the newest request carries. */
static const struct ibv_qp_ex *carry(struct ibv_qp_ex *handle, uint64_t bytes)
{
	struct requests *requests = requests_of(handle);

	if (requests->qp)
		burst_bytes(&requests->burst, bytes);
	return &requests->device;
}

static void set_sge(struct ibv_qp_ex *handle, uint32_t key, uint64_t address, uint32_t bytes)
{
	carry(handle, bytes)->wr_set_sge(handle, key, address, bytes);
}

static void set_sge_list(struct ibv_qp_ex *handle, size_t count, const struct ibv_sge *list)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < count; i++)
		bytes += list[i].length;
	carry(handle, bytes)->wr_set_sge_list(handle, count, list);
}

static void set_inline_data(struct ibv_qp_ex *handle, void *address, size_t bytes)
{
	carry(handle, bytes)->wr_set_inline_data(handle, address, bytes);
}

static void set_inline_data_list(struct ibv_qp_ex *handle, size_t count, const struct ibv_data_buf *list)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < count; i++)
		bytes += list[i].length;
	carry(handle, bytes)->wr_set_inline_data_list(handle, count, list);
}

/* A function that the device lacks stays absent. */
#define REPLACE(handle, name, ours) \
	do { \
		if ((handle)->name) \
			(handle)->name = ours; \
	} while (0)

static void replace(struct ibv_qp_ex *handle)
{
	REPLACE(handle, wr_start, start);
	REPLACE(handle, wr_complete, complete);
	REPLACE(handle, wr_abort, give_up);
	REPLACE(handle, wr_rdma_write, rdma_write);
	REPLACE(handle, wr_rdma_write_imm, rdma_write_imm);
	REPLACE(handle, wr_rdma_read, rdma_read);
	REPLACE(handle, wr_send, send);
	REPLACE(handle, wr_send_imm, send_imm);
	REPLACE(handle, wr_send_inv, send_inv);
	REPLACE(handle, wr_atomic_cmp_swp, compare_and_swap);
	REPLACE(handle, wr_atomic_fetch_add, fetch_and_add);
	REPLACE(handle, wr_bind_mw, bind_window);
	REPLACE(handle, wr_local_inv, invalidate);
	REPLACE(handle, wr_set_sge, set_sge);
	REPLACE(handle, wr_set_sge_list, set_sge_list);
	REPLACE(handle, wr_set_inline_data, set_inline_data);
	REPLACE(handle, wr_set_inline_data_list, set_inline_data_list);
}

void requests_watch(struct ibv_qp *qp)
{
	as_extended_function *as_extended = (as_extended_function *)real_verbs_newer("ibv_qp_to_qp_ex");
	struct ibv_qp_ex *handle = as_extended ? as_extended(qp) : NULL;

	if (!handle || !handle->wr_start || !handle->wr_complete || handle->wr_start == start)
		return;
	struct requests *requests = calloc(1, sizeof *requests);
	if (!requests)
		return;
	/* Functions added to the structure later are neither copied nor replaced: the device may be older than this. */
	memcpy(&requests->device, handle, offsetof(struct ibv_qp_ex, wr_abort) + sizeof handle->wr_abort);
	pthread_mutex_lock(&lock);
	if (table_set(&all, (uintptr_t)qp, requests))
		replace(handle);
	pthread_mutex_unlock(&lock);
}

void requests_forget(struct ibv_qp *qp)
{
	pthread_mutex_lock(&lock);
	free(table_take(&all, (uintptr_t)qp));
	pthread_mutex_unlock(&lock);
}
