/* A libibverbs with one device that carries nothing: what is posted completes when it is polled, in order. It stands in
   where only counting is tried; what devices do is tried in a lab. */
#include "fake_verbs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { QPS = 4096, DEPTH = 1 << 12 };

struct state {
	struct ibv_qp handle;
	struct ibv_qp_init_attr first;
	unsigned char signaled[DEPTH]; /* of each request that is outstanding: whether it completes */
	unsigned long head, tail, received;
	uint32_t received_bytes;
	enum ibv_wc_status status;
	uint32_t vendor_err;
};

static struct state *states[QPS];
static unsigned int made;
static struct verbs_context context;
static struct ibv_device device = {.name = "fake0"};

static struct state *state_of(struct ibv_qp *qp)
{
	return (struct state *)qp;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *first, struct ibv_send_wr **bad)
{
	struct state *state = state_of(qp);

	for (; first; first = first->next) {
		if (state->head - state->tail == state->first.cap.max_send_wr) {
			*bad = first;
			return ENOMEM;
		}
		state->signaled[state->head++ % DEPTH] = state->first.sq_sig_all || first->send_flags & IBV_SEND_SIGNALED;
	}
	return 0;
}

static int complete_one(struct state *state, struct ibv_wc *wc)
{
	memset(wc, 0, sizeof *wc);
	wc->qp_num = state->handle.qp_num;
	if (state->received) {
		state->received--;
		wc->opcode = IBV_WC_RECV;
		wc->byte_len = state->received_bytes;
		return 1;
	}
	while (state->tail < state->head) {
		int signaled = state->signaled[state->tail++ % DEPTH];
		wc->status = state->status;
		wc->vendor_err = state->vendor_err;
		if (signaled || state->status)
			return 1;
	}
	return 0;
}

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
	int found = 0;

	for (unsigned int i = 0; i < made && found < most; i++)
		while (states[i]->handle.send_cq == cq && found < most && complete_one(states[i], wc + found))
			found++;
	return found;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
	return cq && solicited ? 0 : 0;
}

struct ibv_context *ibv_open_device(struct ibv_device *which)
{
	context.sz = sizeof context;
	context.context.device = which ? which : &device;
	context.context.abi_compat = fake_layout;
	context.context.ops.post_send = post_send;
	context.context.ops.poll_cq = poll_cq;
	context.context.ops.req_notify_cq = req_notify_cq;
	return &context.context;
}

int ibv_close_device(struct ibv_context *which)
{
	return which != &context.context;
}

struct ibv_qp *fake_qp(struct ibv_cq *cq, int depth, int all_signaled)
{
	struct state *state = calloc(1, sizeof *state);

	state->handle = (struct ibv_qp){.context = &context.context, .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
	state->handle.qp_num = 17 + made;
	state->first.cap.max_send_wr = (uint32_t)depth;
	state->first.sq_sig_all = all_signaled;
	states[made++] = state;
	return &state->handle;
}

void fake_receive(struct ibv_qp *qp, unsigned long messages, uint32_t bytes)
{
	state_of(qp)->received += messages;
	state_of(qp)->received_bytes = bytes;
}

void fake_fail(struct ibv_qp *qp, enum ibv_wc_status status, uint32_t vendor_err)
{
	state_of(qp)->status = status;
	state_of(qp)->vendor_err = vendor_err;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask, struct ibv_qp_init_attr *first)
{
	memset(attributes, 0, mask ? sizeof *attributes : 0);
	*first = state_of(qp)->first;
	return 0;
}

int ibv_query_gid(struct ibv_context *which, uint8_t port, int index, union ibv_gid *gid)
{
	const unsigned char address[16] = {[10] = 255, [11] = 255, [12] = 10, 0, port, (unsigned char)index};

	memcpy(gid->raw, address, sizeof address);
	return which != &context.context;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask)
{
	struct state *state = state_of(qp);

	if (mask == IBV_QP_AV)
		fake_readdressed = (struct readdressed){attributes->ah_attr.grh.flow_label, qp->state, state->head - state->tail};
	else if (attributes->qp_state != IBV_QPS_SQD && qp->state != IBV_QPS_SQD)
		fake_modified[attributes->qp_state == IBV_QPS_RTS] = *attributes;
	if (mask & IBV_QP_STATE)
		qp->state = attributes->qp_state;
	return 0;
}

struct ibv_qp_attr fake_modified[2];
struct readdressed fake_readdressed;
uint32_t fake_vendor = 0xffffff;
void *fake_layout = (void *)UINTPTR_MAX;

int ibv_query_device(struct ibv_context *which, struct ibv_device_attr *attributes)
{
	memset(attributes, 0, sizeof *attributes);
	attributes->vendor_id = fake_vendor;
	return which != &context.context;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	return cq ? 0 : EINVAL;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	qp->send_cq = NULL;
	return 0;
}
