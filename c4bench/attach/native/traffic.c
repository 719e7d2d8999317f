#include "traffic.h"

__attribute__((noinline)) uint64_t burst_begin_transfer(struct qp *qp, uint64_t now)
{
	if (!now)
		now = now_ns();
	qp_begin_transfer(qp, now);
	return now;
}

__attribute__((noinline)) uint64_t burst_note(struct qp *qp, unsigned int messages, uint64_t now)
{
	if (!now)
		now = now_ns();
	for (; messages; messages--)
		tally_add(&qp->noticed, now);
	return now;
}

__attribute__((cold)) void count_error(struct qp *qp, const struct completion *completion)
{
	if (!qp->errors++) {
		qp->first_status = completion->status;
		qp->first_vendor_err = completion->vendor_err;
	}
}
