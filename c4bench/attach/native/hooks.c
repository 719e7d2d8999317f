/* What a program does with its queues by its device's context, on the way to the device. */
#include "device.h"
#include "move.h"
#include "stash.h"
#include "time.h"
#include "traffic.h"

void count_completions(struct device *device, const struct ibv_wc *completions, int found)
{
	struct batch batch = {.device = device};

	for (const struct ibv_wc *wc = completions; wc < completions + found; wc++) {
		struct completion completion = {wc->qp_num, wc->vendor_err, wc->byte_len, wc->status, wc->opcode & IBV_WC_RECV};
		batch_add(&batch, &completion);
	}
	batch_end(&batch);
}

int hooked_poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *completions)
{
	struct device *device = device_of(cq->context);
	int found = atomic_load_explicit(&stashed, memory_order_relaxed) ? stash_take(cq, most, completions) : 0;

	if (found) {
		progressed();
		return found;
	}
	found = device->poll_cq(cq, most, completions);
	if (found > 0) {
		progressed();
		count_completions(device, completions, found);
	} else if (!found) {
		qps_flush();
		waited_in_vain();
	}
	return found;
}

/* Who asks to be woken is about to sleep. */
int hooked_req_notify_cq(struct ibv_cq *cq, int solicited)
{
	qps_flush();
	return device_of(cq->context)->req_notify_cq(cq, solicited);
}

static inline enum work work_of(const struct ibv_send_wr *request)
{
	switch (request->opcode) {
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
	case IBV_WR_SEND_WITH_INV:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return NOTICED;
	case IBV_WR_RDMA_READ:
		return READ;
	default:
		return PLAIN;
	}
}

static inline uint64_t bytes_of(const struct ibv_send_wr *request)
{
	uint64_t bytes = 0;

	if (request->opcode == IBV_WR_LOCAL_INV || request->opcode == IBV_WR_BIND_MW)
		return 0;
	for (int i = 0; i < request->num_sge; i++)
		bytes += request->sg_list[i].length;
	return bytes;
}

/* Count the requests from `first` on that come before `end`. */
static inline void count_posts(struct burst *burst, const struct ibv_send_wr *first, const struct ibv_send_wr *end)
{
	for (; first && first != end; first = first->next) {
		burst_add(burst, work_of(first), first->send_flags & IBV_SEND_SIGNALED);
		burst_bytes(burst, bytes_of(first));
	}
}

int hooked_post_send(struct ibv_qp *handle, struct ibv_send_wr *first, struct ibv_send_wr **bad)
{
	struct qp *qp = qp_of(handle);
	struct burst burst;

	progressed();
	if (!qp)
		return device_of(handle->context)->post_send(handle, first, bad);
	move_if_wanted(qp);
	burst_begin(&burst, qp);
	count_posts(&burst, first, NULL);
	int failed = qp->device->post_send(handle, first, bad);
	if (failed) {
		burst_withdraw(&burst);
		count_posts(&burst, first, *bad);
	}
	burst_end(&burst);
	return failed;
}
