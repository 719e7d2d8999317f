#include "traffic.h"

uint64_t burst_begin_transfer(struct qp *qp, uint64_t now)
{
	if (!now)
		now = now_ns();
	qp_begin_transfer(qp, now);
	return now;
}

uint64_t burst_note(struct qp *qp, unsigned int messages, uint64_t now)
{
	if (!now)
		now = now_ns();
	for (; messages; messages--)
		tally_add(&qp->noticed, now);
	return now;
}

/* A queue pair that has failed completes what was left, each request by itself; nothing of it was carried. */
static void count_error(struct qp *qp, const struct completion *completion)
{
	if (!qp->errors++) {
		qp->first_status = completion->status;
		qp->first_vendor_err = completion->vendor_err;
	}
}

static void count_sent(struct qp *qp)
{
	if (qp->marks_done < qp->sent.marked)
		qp->done = qp->marks[qp->marks_done++ & qp->mark_mask];
}

static void count(struct batch *batch, const struct completion *completion)
{
	struct qp *qp = batch->qp;

	if (completion->status != IBV_WC_SUCCESS) {
		count_error(qp, completion);
	} else if (completion->received) {
		tally_add(&qp->arrived, batch->now);
		qp->arrived_bytes += completion->bytes;
	} else {
		count_sent(qp);
		batch->moved = 1;
	}
}

void batch_add(struct batch *batch, const struct completion *completion)
{
	if (!batch->qp || completion->number != batch->number) {
		batch_end(batch);
		batch->qp = qp_numbered(batch->device, completion->number);
		if (!batch->qp)
			return;
		batch->number = completion->number;
		if (!batch->now)
			batch->now = now_ns();
		bias_enter(&batch->qp->polling);
	}
	count(batch, completion);
}

void batch_end(struct batch *batch)
{
	struct qp *qp = batch->qp;

	if (!qp)
		return;
	if (batch->moved)
		qp_note_progress(qp, batch->now);
	bias_leave(&qp->polling);
	qp_changed(qp, batch->now);
	batch->qp = NULL;
	batch->moved = 0;
}
