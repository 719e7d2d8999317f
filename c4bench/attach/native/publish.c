/* Writing a record costs some hundred ns, counting a message a few: so a record is written when its process has nothing
   better to do, in a vain poll or before it sleeps; and when it was written PUBLISH_NS ago, by whoever changes it next. */
#include "agent.h"
#include "qp.h"

enum { IDLE = 0, TRANSFER = 3 };

/* collective/ring_layout.py, CONN and TALLY */
struct sending {
	uint64_t messages, size_bytes;
	int64_t credit_ns, data_ns, transfer_ns, shared_ns, progress_ns;
	uint32_t outstanding, owed, source_port, state;
	int64_t since_ns;
	struct tally posted;
};

/* attach/records.py, QP */
struct queue_pair {
	uint32_t number, remote_number, asked_label, label;
	uint8_t asked_timeout, timeout, asked_retries, retries;
	uint32_t first_status, first_vendor_err, connected;
	uint64_t errors, posted, posted_bytes, read_bytes, completed, completed_bytes, arrived, arrived_bytes;
};

struct qp *_Atomic qps_dirty;

/* The port that RoCE v2 packets of a label come from; the kernel makes up a label where the program gives none
   (rdma_calc_flow_label in rdma/ib_verbs.h). */
static uint32_t source_port(const struct qp *qp)
{
	uint32_t label = qp->attributes.label;

	if (!label) {
		uint64_t mixed = (uint64_t)qp->number * qp->attributes.remote_number;
		mixed ^= mixed >> 20;
		mixed ^= mixed >> 40;
		label = mixed & IB_GRH_FLOWLABEL_MASK;
	}
	return ibv_flow_label_to_udp_sport(label);
}

/* Of what will be completed it is known whether it is: only that counts as transfer, and as owed where the program has
   looked in vain since it posted; one that has not may just compute. Nobody learns what has become of requests without a
   completion that no other one follows. The place of what a rank's own operations owe says it: they owe nothing here. */
static void write_sending(struct qp *qp, int looked)
{
	uint64_t outstanding = qp->sent.all.messages - qp->done.messages;
	int awaited = qp->sent.marked != qp->marks_done;
	struct sending record = {
		.messages = qp->done.messages,
		.size_bytes = qp->done.bytes,
		.transfer_ns = (int64_t)qp->spent_ns,
		.shared_ns = (int64_t)(qp->shared / SHARE_UNIT),
		.progress_ns = (int64_t)qp->progress_ns,
		.outstanding = (uint32_t)outstanding,
		.owed = awaited && looked,
		.source_port = source_port(qp),
		.state = awaited ? TRANSFER : IDLE,
		.since_ns = (int64_t)qp->since_ns,
		.posted = qp->noticed,
	};

	slot_write(&qp->records.sending, &record, sizeof record);
}

static void write_queue_pair(struct qp *qp)
{
	const struct attributes *kept = &qp->attributes;
	struct queue_pair record = {
		.number = qp->number, .remote_number = kept->remote_number,
		.asked_label = kept->asked_label, .label = kept->label,
		.asked_timeout = kept->asked_timeout, .timeout = kept->timeout,
		.asked_retries = kept->asked_retries, .retries = kept->retries,
		.first_status = qp->first_status, .first_vendor_err = qp->first_vendor_err, .connected = qp->connected,
		.errors = qp->errors, .posted = qp->sent.all.messages, .posted_bytes = qp->sent.all.bytes,
		.read_bytes = qp->sent.read_bytes, .completed = qp->done.messages, .completed_bytes = qp->done.bytes,
		.arrived = qp->arrived.count, .arrived_bytes = qp->arrived_bytes,
	};

	slot_write(&qp->records.queue_pair, &record, sizeof record);
}

static void push(struct qp *qp)
{
	if (atomic_exchange(&qp->dirty, 1))
		return;
	qp->next_dirty = atomic_load(&qps_dirty);
	while (!atomic_compare_exchange_weak(&qps_dirty, &qp->next_dirty, qp))
		continue;
}

/* Another thread that writes the record already may miss the last change, so it is written again later. */
void qp_publish(struct qp *qp, int looked)
{
	if (qp->records.place == NO_PLACE)
		return;
	if (atomic_exchange(&qp->publishing, 1)) {
		push(qp);
		return;
	}
	write_sending(qp, looked);
	slot_write(&qp->records.arriving, &qp->arrived, sizeof qp->arrived);
	write_queue_pair(qp);
	uint64_t now = qp->progress_ns > qp->since_ns ? qp->progress_ns : qp->since_ns;
	qp->published_ns = now;
	atomic_store(&qp->publishing, 0);
	agent_keep(now);
}

/* Who is woken by the next completion is as good as one that looks for it. */
void qp_publish_later(struct qp *qp)
{
	if (qp->device->woken)
		qp_publish(qp, 1);
	else
		push(qp);
}

void qps_publish(void)
{
	struct qp *next, *qp = atomic_exchange(&qps_dirty, NULL);

	for (; qp; qp = next) {
		next = qp->next_dirty;
		atomic_store(&qp->dirty, 0);
		qp_publish(qp, 1);
	}
}
