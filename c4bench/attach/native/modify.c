/* Where queue pairs are connected and given up: what they are recorded by, and where their path and their patience are
   chosen. */
#include "qp.h"
#include "real.h"
#include "requests.h"

#include <errno.h>

typedef int modify_function(struct ibv_qp *, struct ibv_qp_attr *, int);
typedef int destroy_function(struct ibv_qp *);

static int connects(const struct ibv_qp *qp, const struct ibv_qp_attr *attributes, int mask)
{
	int wanted = IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN;

	return qp->qp_type == IBV_QPT_RC && (mask & wanted) == wanted && attributes->qp_state == IBV_QPS_RTR;
}

static struct attributes asked_for(const struct ibv_qp_attr *attributes)
{
	uint32_t label = attributes->ah_attr.grh.flow_label;

	return (struct attributes){.remote_number = attributes->dest_qp_num, .asked_label = label, .label = label};
}

static void note_patience(struct ibv_qp *handle, const struct ibv_qp_attr *attributes, int mask)
{
	struct qp *qp = mask & (IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT) ? qp_of(handle) : NULL;

	if (!qp)
		return;
	if (mask & IBV_QP_TIMEOUT)
		qp->attributes.asked_timeout = qp->attributes.timeout = attributes->timeout;
	if (mask & IBV_QP_RETRY_CNT)
		qp->attributes.asked_retries = qp->attributes.retries = attributes->retry_cnt;
	qp_changed(qp, now_ns());
}

int ibv_modify_qp(struct ibv_qp *handle, struct ibv_qp_attr *attributes, int mask)
{
	static modify_function *real;

	if (!real)
		real = (modify_function *)real_verbs("ibv_modify_qp");
	if (!real)
		return ENOSYS;
	if (mask & IBV_QP_STATE && attributes->qp_state == IBV_QPS_RESET)
		qp_forget(handle);
	int failed = real(handle, attributes, mask);
	if (failed)
		return failed;
	if (connects(handle, attributes, mask)) {
		struct attributes kept = asked_for(attributes);
		qp_forget(handle);
		qp_connect(handle, attributes, &kept);
		requests_watch(handle);
	}
	note_patience(handle, attributes, mask);
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *handle)
{
	static destroy_function *real;

	if (!real)
		real = (destroy_function *)real_verbs("ibv_destroy_qp");
	qp_forget(handle);
	requests_forget(handle);
	return real ? real(handle) : ENOSYS;
}
