/* What a program does with its queues by its device's context, on the way to the device. */
#include "device.h"
#include "move.h"
#include "stash.h"
#include "traffic.h"

static inline void count_one(struct batch *batch, const struct ibv_wc *wc)
{
	struct completion completion = {wc->qp_num, wc->vendor_err, wc->byte_len, wc->status, wc->opcode & IBV_WC_RECV};

	batch_add(batch, &completion);
}

static inline void count_all(struct device *device, const struct ibv_wc *completions, int found)
{
	struct batch batch = {.device = device, .now = now_ns()};

	for (const struct ibv_wc *wc = completions; wc < completions + found; wc++)
		count_one(&batch, wc);
	batch_end(&batch);
}

void count_completions(struct device *device, const struct ibv_wc *completions, int found)
{
	count_all(device, completions, found);
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
		if (found == 1) /* the compiler makes this one without a loop */
			count_all(device, completions, 1);
		else
			count_all(device, completions, found);
	} else if (!found) {
		qps_flush();
		waited_in_vain();
		note_look(device, cq);
	}
	return found;
}

/* Who asks to be woken is about to sleep. */
int hooked_req_notify_cq(struct ibv_cq *cq, int solicited)
{
	struct device *device = device_of(cq->context);

	qps_flush();
	device->asleep = 1;
	device->woken = LOOKS_OF_WOKEN;
	return device->req_notify_cq(cq, solicited);
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

static inline void count_post(struct burst *burst, const struct ibv_send_wr *request)
{
	burst_add(burst, work_of(request), request->send_flags & IBV_SEND_SIGNALED, bytes_of(request));
}

static inline void count_posts(struct burst *burst, const struct ibv_send_wr *first)
{
	for (; first; first = first->next)
		count_post(burst, first);
}

/* The device has refused those from `bad` on. */
__attribute__((noinline, cold)) static void end_refused(struct qp *qp, int owned, unsigned int noticed, uint64_t now,
							 const struct ibv_send_wr *bad)
{
	struct burst burst = {.qp = qp, .owned = owned, .sent = qp->sent, .noticed = noticed, .now = now};

	for (; bad; bad = bad->next)
		burst_take_back(&burst, work_of(bad), bytes_of(bad));
	burst_count(&burst);
	burst_end(&burst);
}

static inline int post(struct qp *qp, struct ibv_send_wr *first, struct ibv_send_wr **bad, int alone)
{
	struct burst burst = burst_begin(qp);

	if (alone)
		count_post(&burst, first);
	else
		count_posts(&burst, first);
	burst_count(&burst);
	int failed = qp->device->post_send(qp->handle, first, bad);
	if (failed)
		end_refused(qp, burst.owned, burst.noticed, burst.now, *bad);
	else
		burst_end(&burst);
	return failed;
}

__attribute__((noinline)) static int post_list(struct qp *qp, struct ibv_send_wr *first, struct ibv_send_wr **bad)
{
	return post(qp, first, bad, 0);
}

/* A request that comes alone, as most do, takes a way without loops, whose values stay in registers. */
int hooked_post_send(struct ibv_qp *handle, struct ibv_send_wr *first, struct ibv_send_wr **bad)
{
	struct qp *qp = qp_of(handle);

	progressed();
	if (!qp)
		return device_of(handle->context)->post_send(handle, first, bad);
	move_if_wanted(qp);
	if (!first || first->next)
		return post_list(qp, first, bad);
	return post(qp, first, bad, 1);
}
