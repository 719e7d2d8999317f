/* A request is carried out whole when somebody polls, in the order of the posts, and acknowledged `fabric_lag` requests later: what
   lies between is what a failover must not repeat. Queue pairs in the error state take nothing; all they have outstanding is
   flushed. A failed NIC carries nothing; its queue pairs have an error once there is anything outstanding. */
#define _GNU_SOURCE
#include "fabric.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RING = 256, CQ_RING = 4096, QPS = 4096, CONTEXTS = 64, PARTS = 4 };

struct request {
	struct ibv_send_wr wr;
	struct ibv_sge parts[PARTS];
	unsigned char data[64];
};

struct receive {
	struct ibv_recv_wr wr;
	struct ibv_sge part;
};

struct shared {
	struct ibv_srq base;
	unsigned long head, tail;
	struct receive receives[RING];
};

struct queue_pair {
	union {
		struct ibv_qp base;
		struct ibv_qp_ex extended;
	};
	struct ibv_qp_attr to_receive;
	enum ibv_qp_state state; /* what the handle says is the library's */
	int nic, all_signaled;
	uint32_t expected, next; /* packet sequence numbers: of what is taken next, and of what is carried next */
	unsigned long head, carried, done, received_head, received; /* of requests and receives */
	struct request requests[RING];
	struct receive receives[RING];
};

struct queue {
	struct ibv_cq base;
	unsigned long head, tail;
	struct ibv_wc ring[CQ_RING];
};

struct context {
	struct verbs_context base;
	int nic, events[2];
};

unsigned long fabric_lag = 4;
int fabric_tells_packets = 1;
struct fabric_log fabric_log;
unsigned long fabric_carried[NICS];
uint8_t fabric_speed[NICS] = {32, 32, 32, 32, 32, 32};
static struct ibv_device devices[NICS] = {{.name = "nic0"}, {.name = "nic1"}, {.name = "nic2"}, {.name = "nic3"}, {.name = "nic4"}, {.name = "nic5"}};
static enum fabric_failure failed[NICS];
static struct queue_pair *qps[QPS];
static struct context *contexts[CONTEXTS];
static uint32_t qp_count, context_count, key_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int nic_of(struct ibv_context *context)
{
	return ((struct context *)verbs_get_ctx(context))->nic;
}

static void complete(struct ibv_cq *cq, struct ibv_wc wc)
{
	struct queue *queue = (struct queue *)cq;

	if (queue->head - queue->tail == CQ_RING)
		abort();
	queue->ring[queue->head++ % CQ_RING] = wc;
}

static struct queue_pair *peer_of(const struct queue_pair *qp)
{
	for (uint32_t i = 0; i < qp_count; i++)
		if (qps[i] && qps[i]->base.qp_num == qp->to_receive.dest_qp_num)
			return qps[i];
	return NULL;
}

static void complete_send(struct queue_pair *qp, unsigned long number, enum ibv_wc_status status)
{
	const struct request *request = &qp->requests[number % RING];
	static const enum ibv_wc_opcode opcodes[] = {
		[IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE, [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
		[IBV_WR_SEND] = IBV_WC_SEND, [IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND, [IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ};

	if (status || qp->all_signaled || request->wr.send_flags & IBV_SEND_SIGNALED)
		complete(qp->base.send_cq, (struct ibv_wc){.wr_id = request->wr.wr_id, .status = status,
							    .opcode = opcodes[request->wr.opcode], .qp_num = qp->base.qp_num});
}

/* A message had come in part: the shared receive that it was coming to is flushed. */
static void flush_shared(struct queue_pair *qp)
{
	struct shared *shared = (struct shared *)qp->base.srq;

	if (shared && qp->state != IBV_QPS_ERR && shared->tail < shared->head)
		complete(qp->base.recv_cq, (struct ibv_wc){.wr_id = shared->receives[shared->tail++ % RING].wr.wr_id,
							    .status = IBV_WC_WR_FLUSH_ERR, .qp_num = qp->base.qp_num});
}

static void flush(struct queue_pair *qp, enum ibv_wc_status first)
{
	flush_shared(qp);
	qp->state = IBV_QPS_ERR;
	for (; qp->done < qp->head; qp->done++, first = IBV_WC_WR_FLUSH_ERR)
		complete_send(qp, qp->done, first);
	qp->carried = qp->head;
	for (; qp->received < qp->received_head; qp->received++)
		complete(qp->base.recv_cq, (struct ibv_wc){.wr_id = qp->receives[qp->received % RING].wr.wr_id,
							    .status = IBV_WC_WR_FLUSH_ERR, .qp_num = qp->base.qp_num});
}

static uint32_t bytes_of(const struct request *request)
{
	uint32_t bytes = 0;

	for (int i = 0; i < request->wr.num_sge; i++)
		bytes += request->parts[i].length;
	return bytes;
}

static void gather(const struct request *request, unsigned char *into)
{
	for (int i = 0; i < request->wr.num_sge; i++) {
		memcpy(into, (void *)(uintptr_t)request->parts[i].addr, request->parts[i].length);
		into += request->parts[i].length;
	}
}

static int has_imm(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static int has_receive(const struct queue_pair *to)
{
	const struct shared *shared = (struct shared *)to->base.srq;

	return shared ? shared->tail < shared->head : to->received < to->received_head;
}

static const struct receive *next_receive(struct queue_pair *to)
{
	struct shared *shared = (struct shared *)to->base.srq;

	return shared ? &shared->receives[shared->tail++ % RING] : &to->receives[to->received++ % RING];
}

static void take_receive(struct queue_pair *to, const struct request *request, uint32_t bytes)
{
	const struct receive *receive = next_receive(to);
	int write = request->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;

	if (!write)
		gather(request, (unsigned char *)(uintptr_t)receive->part.addr);
	complete(to->base.recv_cq, (struct ibv_wc){.wr_id = receive->wr.wr_id, .qp_num = to->base.qp_num, .byte_len = bytes,
						    .opcode = write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
						    .wc_flags = has_imm(request->wr.opcode) ? IBV_WC_WITH_IMM : 0,
						    .imm_data = request->wr.imm_data});
}

static void move_memory(const struct request *request, uint32_t bytes)
{
	unsigned char *at = (unsigned char *)(uintptr_t)request->wr.wr.rdma.remote_addr;

	if (request->wr.opcode == IBV_WR_RDMA_READ) {
		for (int i = 0; i < request->wr.num_sge; at += request->parts[i++].length)
			memcpy((void *)(uintptr_t)request->parts[i].addr, at, request->parts[i].length);
		return;
	}
	gather(request, at);
	if (bytes >= 8)
		memcpy(&fabric_log.words[fabric_log.count++ % (1 << 16)], at, 8);
}

/* Packets of a request that was taken before are acknowledged without being taken again; those of a later one are refused
   (InfiniBand specification, volume 1, 9.7.5.1). */
enum { PACKETS = 1 << 24 };
static int is_early(const struct queue_pair *qp, const struct queue_pair *to)
{
	uint32_t ahead = (qp->next - to->expected) % PACKETS;

	return ahead && ahead < PACKETS / 2;
}

/* Returns whether the next request was carried out. The key's lowest bits name the NIC that it is of. */
static int carry(struct queue_pair *qp)
{
	struct request *request = &qp->requests[qp->carried % RING];
	struct queue_pair *to = peer_of(qp);
	int receives = request->wr.opcode != IBV_WR_RDMA_WRITE && request->wr.opcode != IBV_WR_RDMA_READ;
	uint32_t bytes = bytes_of(request), unit = 128u << qp->to_receive.path_mtu;

	if (qp->carried == qp->head || qp->state != IBV_QPS_RTS || !to || to->state < IBV_QPS_RTR ||
	    to->state > IBV_QPS_RTS || failed[qp->nic] || failed[to->nic] || is_early(qp, to))
		return 0;
	uint32_t packets = bytes ? (bytes + unit - 1) / unit : 1;
	if (qp->next != to->expected) {
		qp->next = (qp->next + packets) % PACKETS;
		qp->carried++;
		return 1;
	}
	if (receives && !has_receive(to))
		return 0;
	if (request->wr.opcode != IBV_WR_SEND && request->wr.opcode != IBV_WR_SEND_WITH_IMM && bytes) {
		if ((int)(request->wr.wr.rdma.rkey % NICS) != to->nic)
			abort();
		move_memory(request, bytes);
	}
	if (receives)
		take_receive(to, request, bytes);
	qp->next = to->expected = (to->expected + packets) % PACKETS;
	qp->carried++;
	fabric_carried[qp->nic] += bytes > 0;
	return 1;
}

static int has_errors(int nic)
{
	return failed[nic] == WITH_EVENT || failed[nic] == WITH_ERRORS;
}

static void step(void)
{
	for (uint32_t i = 0; i < qp_count; i++) {
		struct queue_pair *qp = qps[i], *to = qp ? peer_of(qp) : NULL;
		if (!qp || qp->state != IBV_QPS_RTS)
			continue;
		int carried = carry(qp);
		if (qp->done < qp->carried && (qp->carried - qp->done > fabric_lag || !carried) && to && !failed[qp->nic] &&
		    !failed[to->nic])
			complete_send(qp, qp->done++, IBV_WC_SUCCESS);
		if (qp->done < qp->head && (!to || has_errors(qp->nic) || has_errors(to->nic) || to->state == IBV_QPS_ERR))
			flush(qp, IBV_WC_RETRY_EXC_ERR);
	}
}

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
	struct queue *queue = (struct queue *)cq;
	int found = 0;

	pthread_mutex_lock(&lock);
	step();
	while (found < most && queue->tail < queue->head)
		wc[found++] = queue->ring[queue->tail++ % CQ_RING];
	pthread_mutex_unlock(&lock);
	return found;
}

/* Keys of another NIC are a bug of who posts. */
static void check_keys(int nic, const struct ibv_sge *parts, int count)
{
	for (int i = 0; i < count; i++)
		if (parts[i].length && (int)(parts[i].lkey % NICS) != nic)
			abort();
}

static int post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct queue_pair *qp = (struct queue_pair *)base;

	pthread_mutex_lock(&lock);
	for (; wr && qp->head - qp->done < RING; wr = wr->next) {
		struct request *request = &qp->requests[qp->head++ % RING];
		request->wr = *wr;
		memcpy(request->parts, wr->sg_list, (size_t)wr->num_sge * sizeof *wr->sg_list);
		if (wr->send_flags & IBV_SEND_INLINE) {
			gather(request, request->data);
			request->parts[0].addr = (uintptr_t)request->data;
		} else {
			check_keys(qp->nic, request->parts, wr->num_sge);
		}
	}
	if (qp->state == IBV_QPS_ERR)
		flush(qp, IBV_WC_WR_FLUSH_ERR);
	pthread_mutex_unlock(&lock);
	*bad = wr;
	return wr ? ENOMEM : 0;
}

static int post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct queue_pair *qp = (struct queue_pair *)base;

	pthread_mutex_lock(&lock);
	for (; wr && qp->received_head - qp->received < RING; wr = wr->next) {
		struct receive *receive = &qp->receives[qp->received_head++ % RING];
		*receive = (struct receive){*wr, wr->sg_list[0]};
		check_keys(qp->nic, &receive->part, 1);
	}
	pthread_mutex_unlock(&lock);
	*bad = wr;
	return wr ? ENOMEM : 0;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct shared *shared = (struct shared *)srq;

	pthread_mutex_lock(&lock);
	for (; wr && shared->head - shared->tail < RING; wr = wr->next) {
		struct receive *receive = &shared->receives[shared->head++ % RING];
		*receive = (struct receive){*wr, wr->sg_list[0]};
		check_keys(nic_of(srq->context), &receive->part, 1);
	}
	pthread_mutex_unlock(&lock);
	*bad = wr;
	return wr ? ENOMEM : 0;
}

/* The library has functions of its own in place of these, and posts by ibv_post_send. */
static void never_start(struct ibv_qp_ex *qp)
{
	(void)qp;
	abort();
}

static int never_complete(struct ibv_qp_ex *qp)
{
	never_start(qp);
	return EOPNOTSUPP;
}

static void never_write(struct ibv_qp_ex *qp, uint32_t key, uint64_t address)
{
	(void)key, (void)address;
	never_start(qp);
}

static void never_set_part(struct ibv_qp_ex *qp, uint32_t key, uint64_t address, uint32_t bytes)
{
	(void)key, (void)address, (void)bytes;
	never_start(qp);
}

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attributes)
{
	struct ibv_qp *qp = ibv_create_qp(attributes->pd, (struct ibv_qp_init_attr *)attributes);
	struct ibv_qp_ex *extended = ibv_qp_to_qp_ex(qp);

	extended->wr_start = never_start;
	extended->wr_complete = never_complete;
	extended->wr_rdma_write = never_write;
	extended->wr_set_sge = never_set_part;
	return context == qp->context ? qp : NULL;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	return &((struct queue_pair *)qp)->extended;
}

/* The events themselves are not asked for. */
static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
	(void)solicited;
	return cq ? 0 : EINVAL;
}

struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = calloc(NICS + 1, sizeof *list);

	for (int i = 0; i < NICS; i++)
		list[i] = &devices[i];
	if (count)
		*count = NICS;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct context *context = calloc(1, sizeof *context);
	struct ibv_context *base = &context->base.context;

	if (pipe(context->events))
		abort();
	context->nic = (int)(device - devices);
	context->base.sz = sizeof context->base;
	context->base.create_qp_ex = create_qp_ex;
	base->device = device;
	base->abi_compat = (void *)UINTPTR_MAX;
	base->async_fd = context->events[0];
	base->ops.post_send = post_send;
	base->ops.post_recv = post_recv;
	base->ops.post_srq_recv = post_srq_recv;
	base->ops.poll_cq = poll_cq;
	base->ops.req_notify_cq = req_notify_cq;
	pthread_mutex_lock(&lock);
	contexts[context_count++] = context;
	pthread_mutex_unlock(&lock);
	return base;
}

int ibv_close_device(struct ibv_context *context)
{
	return context->async_fd < 0;
}

#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attributes)
{
	struct ibv_port_attr found = {.active_mtu = IBV_MTU_4096, .link_layer = IBV_LINK_LAYER_ETHERNET, .state = IBV_PORT_ACTIVE,
				      .active_width = 1, .active_speed = fabric_speed[nic_of(context)]};

	memcpy(attributes, &found, offsetof(struct ibv_port_attr, port_cap_flags2));
	return !context || port != 1;
}

static union ibv_gid gid_of(int nic)
{
	union ibv_gid gid = {.raw = {[10] = 0xff, [11] = 0xff, 10, (uint8_t)nic, 0, 1}};

	return gid;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	*gid = gid_of(nic_of(context));
	return port != 1 || index != 1;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry, uint32_t flags,
		      size_t size)
{
	*entry = (struct ibv_gid_entry){.gid = gid_of(nic_of(context)), .gid_index = index, .port_num = port,
					.gid_type = IBV_GID_TYPE_ROCE_V2};
	return port != 1 || index != 1 || flags || !size;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof *pd);

	pd->context = context;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
	struct ibv_mr *mr = calloc(1, sizeof *mr);

	*mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = address, .length = length, .handle = (uint32_t)access};
	mr->lkey = mr->rkey = ++key_count * NICS + (uint32_t)nic_of(pd->context);
	return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	free(mr);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int size, void *own, struct ibv_comp_channel *channel, int vector)
{
	struct queue *queue = calloc(1, sizeof *queue);

	queue->base = (struct ibv_cq){.context = context, .cq_context = own, .channel = channel, .cqe = size + vector};
	return &queue->base;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	free(cq);
	return 0;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attributes)
{
	struct shared *shared = calloc(1, sizeof *shared);

	shared->base = (struct ibv_srq){.context = pd->context, .pd = pd, .srq_context = attributes->srq_context};
	return &shared->base;
}

int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attributes, int mask)
{
	(void)srq;
	return mask & IBV_SRQ_MAX_WR && attributes->max_wr > RING ? EINVAL : 0;
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
	free(srq);
	return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes)
{
	struct queue_pair *qp = calloc(1, sizeof *qp);

	qp->base = (struct ibv_qp){.context = pd->context, .pd = pd, .send_cq = attributes->send_cq, .recv_cq = attributes->recv_cq,
				   .srq = attributes->srq, .qp_type = attributes->qp_type};
	qp->nic = nic_of(pd->context);
	qp->all_signaled = attributes->sq_sig_all;
	pthread_mutex_lock(&lock);
	qp->base.qp_num = 100 + qp_count;
	qps[qp_count++] = qp;
	pthread_mutex_unlock(&lock);
	return &qp->base;
}

int ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attributes, int mask)
{
	struct queue_pair *qp = (struct queue_pair *)base;

	pthread_mutex_lock(&lock);
	if (mask & IBV_QP_STATE) {
		base->state = qp->state = attributes->qp_state;
		if (qp->state == IBV_QPS_ERR)
			flush(qp, IBV_WC_WR_FLUSH_ERR);
		if (qp->state == IBV_QPS_RESET)
			qp->head = qp->carried = qp->done = qp->received_head = qp->received = 0;
		if (qp->state == IBV_QPS_RTR) {
			qp->to_receive = *attributes;
			qp->expected = attributes->rq_psn % PACKETS;
		}
		if (qp->state == IBV_QPS_RTS && mask & IBV_QP_SQ_PSN)
			qp->next = attributes->sq_psn % PACKETS;
	}
	pthread_mutex_unlock(&lock);
	return 0;
}

int ibv_query_qp(struct ibv_qp *base, struct ibv_qp_attr *attributes, int mask, struct ibv_qp_init_attr *init)
{
	memset(init, 0, sizeof *init);
	attributes->rq_psn = ((struct queue_pair *)base)->expected;
	attributes->qp_state = ((struct queue_pair *)base)->state;
	return mask & IBV_QP_RQ_PSN && !fabric_tells_packets;
}

int ibv_destroy_qp(struct ibv_qp *base)
{
	pthread_mutex_lock(&lock);
	for (uint32_t i = 0; i < qp_count; i++)
		if (qps[i] == (struct queue_pair *)base)
			qps[i] = NULL;
	pthread_mutex_unlock(&lock);
	free(base);
	return 0;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	return read(context->async_fd, event, sizeof *event) == sizeof *event ? 0 : -1;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	(void)event;
}

static void tell(int nic, enum ibv_event_type type)
{
	struct ibv_async_event event = {.event_type = type};

	for (uint32_t i = 0; i < context_count; i++)
		if (contexts[i]->nic == nic && write(contexts[i]->events[1], &event, sizeof event) < 0)
			abort();
}

void fabric_fail(int nic, enum fabric_failure how)
{
	pthread_mutex_lock(&lock);
	failed[nic] = how;
	if (how == WITH_EVENT)
		tell(nic, IBV_EVENT_PORT_ERR);
	pthread_mutex_unlock(&lock);
}

void fabric_repair(int nic)
{
	pthread_mutex_lock(&lock);
	failed[nic] = 0;
	tell(nic, IBV_EVENT_PORT_ACTIVE);
	pthread_mutex_unlock(&lock);
}
