/* Where queue pairs are connected and given up: a new connection's path is asked of the agent, and so is how long the device
   tries again before it gives up. What the program asked for stays in the record. */
#include "modify.h"

#include "agent.h"
#include "qp.h"
#include "real.h"
#include "requests.h"

#include <errno.h>

typedef int modify_function(struct ibv_qp *, struct ibv_qp_attr *, int);
typedef int destroy_function(struct ibv_qp *);
typedef int query_gid_function(struct ibv_context *, uint8_t, int, union ibv_gid *);

int modify_really(struct ibv_qp *handle, struct ibv_qp_attr *attributes, int mask)
{
	static modify_function *real;

	if (!real)
		real = (modify_function *)real_verbs("ibv_modify_qp");
	return real ? real(handle, attributes, mask) : ENOSYS;
}

/* Whether this connects a reliable queue pair, on a port that has addresses. */
static int connects(const struct ibv_qp *qp, const struct ibv_qp_attr *attributes, int mask)
{
	int wanted = IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN;

	return qp->qp_type == IBV_QPT_RC && (mask & wanted) == wanted && attributes->qp_state == IBV_QPS_RTR &&
	       attributes->ah_attr.is_global;
}

static int local_address(struct ibv_qp *handle, const struct ibv_ah_attr *ah, union ibv_gid *local)
{
	query_gid_function *query = (query_gid_function *)real_verbs("ibv_query_gid");

	return query && !query(handle->context, ah->port_num, ah->grh.sgid_index, local);
}

/* The program's attributes are changed for the call only. Where the device refuses the label, it gets what was asked. */
static int connect_on(struct ibv_qp *handle, struct ibv_qp_attr *attributes, int mask, struct attributes *kept)
{
	uint32_t *label = &attributes->ah_attr.grh.flow_label;
	int failed = EINVAL;

	if (kept->label != kept->asked_label) {
		*label = kept->label;
		failed = modify_really(handle, attributes, mask);
		*label = kept->asked_label;
	}
	if (failed) {
		kept->label = kept->asked_label;
		failed = modify_really(handle, attributes, mask);
	}
	return failed;
}

static int connect_watched(struct ibv_qp *handle, struct ibv_qp_attr *attributes, int mask)
{
	struct ibv_ah_attr *ah = &attributes->ah_attr;
	uint32_t asked = ah->grh.flow_label;
	struct attributes kept = {.remote_number = attributes->dest_qp_num, .asked_label = asked, .label = asked, .address = *ah};
	struct device *device = device_of(handle->context);

	if (!device || !local_address(handle, ah, &kept.local))
		return modify_really(handle, attributes, mask);
	ring_ready(); /* the agent learns its name */
	struct connection asked_for = {device->number, handle->qp_num, attributes->dest_qp_num, kept.local, ah->grh.dgid};
	struct advice advice = agent_advise(&asked_for);
	if (advice.label > 0)
		kept.label = (uint32_t)advice.label;
	kept.agent = advice.agent;
	kept.wanted_timeout = advice.timeout;
	kept.wanted_retries = advice.retries;
	int failed = connect_on(handle, attributes, mask, &kept);
	if (failed)
		return failed;
	kept.address.grh.flow_label = kept.label;
	qp_forget(handle);
	qp_connect(handle, &kept.local, &ah->grh.dgid, &kept);
	requests_watch(handle);
	return 0;
}

/* How long a device tries is set when a queue pair is made ready to send. */
static int set_patience(struct ibv_qp *handle, struct ibv_qp_attr *attributes, int mask)
{
	struct qp *qp = qp_of(handle);
	uint8_t timeout = attributes->timeout, retries = attributes->retry_cnt;

	if (!qp)
		return modify_really(handle, attributes, mask);
	struct attributes *kept = &qp->attributes;
	if (mask & IBV_QP_TIMEOUT) {
		kept->asked_timeout = timeout;
		kept->timeout = kept->wanted_timeout == NO_ANSWER ? timeout : (uint8_t)kept->wanted_timeout;
		attributes->timeout = kept->timeout;
	}
	if (mask & IBV_QP_RETRY_CNT) {
		kept->asked_retries = retries;
		kept->retries = kept->wanted_retries == NO_ANSWER ? retries : (uint8_t)kept->wanted_retries;
		attributes->retry_cnt = kept->retries;
	}
	int failed = modify_really(handle, attributes, mask);
	attributes->timeout = timeout;
	attributes->retry_cnt = retries;
	qp_changed(qp, now_ns());
	return failed;
}

/* A queue pair that the agent knows needs no path any more, planned or to come. */
static void end(struct ibv_qp *handle)
{
	struct qp *qp = qp_of(handle);

	if (qp && qp->attributes.agent)
		agent_moved(qp->device->number, qp->number, 0, 0);
	qp_forget(handle);
}

int ibv_modify_qp(struct ibv_qp *handle, struct ibv_qp_attr *attributes, int mask)
{
	if (connects(handle, attributes, mask))
		return connect_watched(handle, attributes, mask);
	if (mask & IBV_QP_STATE && attributes->qp_state == IBV_QPS_RESET)
		end(handle);
	if (mask & (IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT))
		return set_patience(handle, attributes, mask);
	return modify_really(handle, attributes, mask);
}

int ibv_destroy_qp(struct ibv_qp *handle)
{
	static destroy_function *real;

	if (!real)
		real = (destroy_function *)real_verbs("ibv_destroy_qp");
	end(handle);
	requests_forget(handle);
	return real ? real(handle) : ENOSYS;
}
