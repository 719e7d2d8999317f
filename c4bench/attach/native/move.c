/* A label stands in the address vector, which may change while nothing is outstanding: so the queue pair is drained, which
   takes as long as its queue lasts, longest on the slow link that it is to leave; what completes meanwhile is kept for the
   program. Then it goes by SQD to the new address vector and back (InfiniBand specification, volume 1, 10.3.1.5). Only
   SoftRoCE is known to do that. */
#include "move.h"

#include "agent.h"
#include "extended.h"
#include "modify.h"
#include "real.h"
#include "stash.h"
#include "time.h"

enum { SOFTWARE = 0xffffff /* the vendor of SoftRoCE */, MS = 1000000 };
static const uint64_t DRAIN_NS = 250 * MS, PAUSE_NS = 1000 * MS;

typedef int query_device_function(struct ibv_context *, struct ibv_device_attr *);
typedef int query_qp_function(struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *);

int move_want(unsigned int device, uint32_t number, uint32_t label)
{
	struct qp *qp = qp_at(device, number);

	if (qp)
		atomic_store(&qp->wanted_label, label);
	return qp != NULL;
}

static int is_software(struct ibv_context *context)
{
	query_device_function *query = (query_device_function *)real_verbs("ibv_query_device");
	struct ibv_device_attr attributes;

	return query && !query(context, &attributes) && attributes.vendor_id == SOFTWARE;
}

/* Whether the newest request will be completed: of one that is not, nobody learns when it is done. */
static int ends_signaled(const struct qp *qp)
{
	const struct sent *sent = &qp->sent;

	return sent->marked && qp->marks[(sent->marked - 1) & qp->mark_mask].messages == sent->all.messages;
}

static int is_quiet(const struct qp *qp)
{
	return *(volatile const uint64_t *)&qp->done.messages == qp->sent.all.messages;
}

/* Returns 0 where that is not possible, or takes too long. */
static int drain(struct qp *qp)
{
	struct ibv_cq *cq = qp->handle->send_cq;
	uint64_t until_ns = now_ns() + DRAIN_NS;

	if (!is_quiet(qp) && (!ends_signaled(qp) || extended_polls(cq)))
		return 0;
	while (!is_quiet(qp)) {
		int found = stash_fill(qp->device, cq);
		if (found < 0 || qp->errors || now_ns() > until_ns)
			return 0;
		if (!found)
			waited_in_vain();
	}
	return 1;
}

/* Nothing is outstanding, so this takes no time; but a device may notice that late. */
static int is_drained(struct qp *qp)
{
	query_qp_function *query = (query_qp_function *)real_verbs("ibv_query_qp");
	uint64_t until_ns = now_ns() + DRAIN_NS;
	struct ibv_qp_attr attributes = {.sq_draining = 1};
	struct ibv_qp_init_attr first;

	while (query && !query(qp->handle, &attributes, IBV_QP_STATE, &first) && attributes.sq_draining) {
		if (now_ns() > until_ns)
			return 0;
		waited_in_vain();
	}
	return !attributes.sq_draining;
}

/* Returns 0 where the device refuses: then the path is as before. */
static int readdress(struct qp *qp, uint32_t label)
{
	struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_SQD, .ah_attr = qp->attributes.address};
	int moved = 0;

	if (modify_really(qp->handle, &attributes, IBV_QP_STATE))
		return 0;
	attributes.ah_attr.grh.flow_label = label;
	if (is_drained(qp))
		moved = !modify_really(qp->handle, &attributes, IBV_QP_AV);
	attributes.qp_state = IBV_QPS_RTS;
	return !modify_really(qp->handle, &attributes, IBV_QP_STATE) && moved;
}

static void move(struct qp *qp, uint32_t label)
{
	struct attributes *kept = &qp->attributes;
	int moved = is_software(qp->handle->context) && readdress(qp, label);

	if (moved)
		kept->label = kept->address.grh.flow_label = label;
	agent_moved(qp->device->number, qp->number, kept->label, !moved);
}

void move_try(struct qp *qp)
{
	uint64_t now = now_ns();
	int64_t label = NO_MOVE;

	if (now < qp->move_not_before_ns)
		return;
	int owned = bias_enter(&qp->posting);
	if (drain(qp))
		label = atomic_exchange(&qp->wanted_label, NO_MOVE);
	else
		qp->move_not_before_ns = extended_polls(qp->handle->send_cq) ? now : now + PAUSE_NS;
	if (label != NO_MOVE)
		move(qp, (uint32_t)label);
	bias_leave(&qp->posting, owned);
	qp_changed(qp, 0);
}
