/* driver WHAT FIRST LAST: for each seed, two programs' ends in one process, nic0 -> nic2, that send, write and read at random in
   both directions while a NIC fails. Prints what came of each: exact, error, or what was wrong. */
#include "fabric.h"

#include <arpa/inet.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAIRED = 4 /* the NICs that the ends use, and their twins */, SPOTS_AT_MOST = 3 };
enum { BYTES = 64, SLOTS = 64, RECEIVES = 32, OUTSTANDING = 24, MESSAGES = 300, OTHERS_AT_MOST = 7 };

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_srq *srq; /* NULL for receives of the queue pair's own */
	unsigned char *memory; /* sources, what is received, what is written here, what may be read here */
	unsigned long sent, done, received, told, posted_receives;
	enum ibv_wr_opcode kinds[1 << 16];
	unsigned char signaled[1 << 16];
	int error;
};

static struct end ends[2];
/* NICs of either end, and queue pairs there that have little to do. */
static struct spot {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
} spots[2][SPOTS_AT_MOST];
static int spot_count = 1;
static struct ibv_qp *others[2][OTHERS_AT_MOST];
static int other_count;
static unsigned long balanced; /* how many queue pairs belong to the second NIC */
static int is_shared, is_extended, is_one_way; /* the second end only receives, and its queue pair stays in RTR */
static int is_silent; /* no completions are asked for */
static int is_plain; /* all messages are plain ones */
static unsigned long kinds = 3; /* of failures, SILENT the last */
static unsigned long long state;
static char wrong[200];

static unsigned long draw(unsigned long below)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (unsigned long)(state >> 33) % below;
}

static void is_wrong(const char *format, ...)
{
	va_list values;

	if (*wrong)
		return;
	va_start(values, format);
	vsnprintf(wrong, sizeof wrong, format, values);
	va_end(values);
}

static double now_s(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static struct end *other(const struct end *end)
{
	return &ends[end == &ends[0]];
}

/* What message `number` of an end begins with. */
static unsigned long long word_of(const struct end *end, unsigned long number)
{
	return (unsigned long long)(end == &ends[1]) << 56 | number;
}

static unsigned char *area(const struct end *end, int which, unsigned long slot)
{
	return end->memory + ((unsigned long)which * SLOTS + slot % SLOTS) * BYTES;
}

static void post_receive(struct end *end)
{
	struct ibv_sge part = {(uintptr_t)area(end, 1, end->posted_receives), BYTES, end->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = end->posted_receives++, .sg_list = &part, .num_sge = 1}, *bad;

	if (end->srq ? ibv_post_srq_recv(end->srq, &wr, &bad) : ibv_post_recv(end->qp, &wr, &bad))
		is_wrong("a receive is refused");
}

static void open_end(struct end *end, int nic, struct ibv_device **devices)
{
	end->context = ibv_open_device(devices[nic]);
	end->pd = ibv_alloc_pd(end->context);
	end->memory = calloc(4, SLOTS * BYTES);
	end->mr = ibv_reg_mr(end->pd, end->memory, 4 * SLOTS * BYTES, 7);
	end->cq = ibv_create_cq(end->context, 200, NULL, NULL, 0);
	for (unsigned long slot = 0; slot < SLOTS; slot++)
		memset(area(end, 3, slot), (int)slot + 1, BYTES);
}

/* Queue pairs of the first NIC of an end have what it has opened. */
static void open_spots(int which, struct ibv_device **devices)
{
	static const int nics[2][SPOTS_AT_MOST] = {{0, 1, 4}, {2, 3, 5}};
	struct end *end = &ends[which];

	for (int i = 0; i < spot_count; i++) {
		struct spot *spot = &spots[which][i];
		spot->context = i ? ibv_open_device(devices[nics[which][i]]) : end->context;
		spot->pd = i ? ibv_alloc_pd(spot->context) : end->pd;
		spot->mr = i ? ibv_reg_mr(spot->pd, end->memory, 4 * SLOTS * BYTES, 7) : end->mr;
		spot->cq = ibv_create_cq(spot->context, 200, NULL, NULL, 0);
	}
}

static void make_qp(struct end *end)
{
	struct ibv_qp_init_attr made = {.send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC,
					.cap = {OUTSTANDING, RECEIVES, 1, 1, 16}};
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT};

	if (is_shared) {
		struct ibv_srq_init_attr shared = {.attr = {.max_wr = RECEIVES, .max_sge = 1}};
		made.srq = end->srq = ibv_create_srq(end->pd, &shared);
	}
	if (is_extended) {
		struct ibv_qp_init_attr_ex more = {.send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC, .cap = made.cap, .pd = end->pd,
						   .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
						   .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE};
		end->qp = ibv_create_qp_ex(end->context, &more);
	} else {
		end->qp = ibv_create_qp(end->pd, &made);
	}
	ibv_modify_qp(end->qp, &init, IBV_QP_STATE);
	end->sent = end->done = end->received = end->told = end->posted_receives = 0;
	end->error = 0;
}

static void connect_to(struct ibv_qp *qp, const struct ibv_qp *peer, int sends)
{
	struct ibv_qp_attr receive = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_256, .dest_qp_num = peer->qp_num,
				      .ah_attr = {.is_global = 1, .port_num = 1, .grh.sgid_index = 1}};
	struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7};

	ibv_query_gid(peer->context, 1, 1, &receive.ah_attr.grh.dgid);
	ibv_modify_qp(qp, &receive, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
	if (sends)
		ibv_modify_qp(qp, &send, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT);
}

static void connect_qp(struct end *end)
{
	for (int i = 0; i < RECEIVES; i++)
		post_receive(end);
	connect_to(end->qp, other(end)->qp, !is_one_way || end == &ends[0]);
}

static struct ibv_qp *make_other(const struct spot *spot)
{
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT};
	struct ibv_qp_init_attr made = {.send_cq = spot->cq, .recv_cq = spot->cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 8}};
	struct ibv_qp *qp = ibv_create_qp(spot->pd, &made);

	ibv_modify_qp(qp, &init, IBV_QP_STATE);
	return qp;
}

static void make_others(void)
{
	for (int n = 0; n < other_count; n++) {
		for (int i = 0; i < 2; i++)
			others[i][n] = make_other(&spots[i][(n + 1) % spot_count]);
		connect_to(others[0][n], others[1][n], 1), connect_to(others[1][n], others[0][n], !is_one_way);
	}
}

/* At how many of the other queue pairs a NIC carries a READ. */
static unsigned long count_others_at(int nic)
{
	unsigned long before = fabric_carried[nic];

	for (int n = 0; n < other_count; n++) {
		const struct spot *here = &spots[0][(n + 1) % spot_count], *there = &spots[1][(n + 1) % spot_count];
		struct ibv_sge part = {(uintptr_t)area(&ends[0], 0, 0), 8, here->mr->lkey};
		struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_READ, .sg_list = &part, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED}, *bad;
		struct ibv_wc wc;
		wr.wr.rdma.rkey = there->mr->rkey;
		wr.wr.rdma.remote_addr = (uintptr_t)area(&ends[1], 3, 0);
		if (ibv_post_send(others[0][n], &wr, &bad))
			is_wrong("another queue pair's post is refused");
		while (!ibv_poll_cq(here->cq, 1, &wc))
			sched_yield();
		if (wc.status)
			is_wrong("another queue pair has an error");
	}
	return fabric_carried[nic] - before;
}

static int is_told(enum ibv_wr_opcode kind)
{
	return kind != IBV_WR_RDMA_WRITE && kind != IBV_WR_RDMA_READ;
}

static void post(struct end *end)
{
	static const enum ibv_wr_opcode kinds[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
						   IBV_WR_RDMA_READ};
	unsigned long number = end->sent;
	enum ibv_wr_opcode kind = end->kinds[number] = kinds[draw(is_plain ? 1 : 5)];
	unsigned long long word = word_of(end, number), *from = (void *)area(end, 0, number);
	struct ibv_sge part = {(uintptr_t)from, BYTES, end->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = number, .opcode = kind, .sg_list = &part, .num_sge = 1, .imm_data = htonl((uint32_t)number)};
	struct ibv_send_wr *bad;

	if (is_told(kind) && end->told >= other(end)->received + RECEIVES)
		return;
	*from = kind == IBV_WR_RDMA_READ ? 0 : word;
	if (draw(4) == 0 && kind != IBV_WR_RDMA_READ) {
		wr.send_flags = IBV_SEND_INLINE;
		part = (struct ibv_sge){(uintptr_t)&word, 8, 0};
	}
	end->signaled[number] = !is_silent && (draw(3) == 0 || number % 8 == 7 || number % MESSAGES == MESSAGES - 1);
	wr.send_flags |= (end->signaled[number] ? IBV_SEND_SIGNALED : 0) | (draw(8) ? 0 : IBV_SEND_FENCE);
	wr.wr.rdma.rkey = other(end)->mr->rkey;
	wr.wr.rdma.remote_addr = (uintptr_t)area(other(end), kind == IBV_WR_RDMA_READ ? 3 : 2, number);
	if (ibv_post_send(end->qp, &wr, &bad))
		is_wrong("a post is refused");
	word = 0; /* inline data are the program's again */
	end->sent++;
	end->told += (unsigned long)is_told(kind);
}

static void check_received(struct end *end, const struct ibv_wc *wc)
{
	struct end *from = other(end);
	unsigned long number = 0, told = 0;

	for (; number < from->sent; number++)
		if (is_told(from->kinds[number]) && told++ == end->received)
			break;
	unsigned long long word = word_of(from, number);
	int write = from->kinds[number] == IBV_WR_RDMA_WRITE_WITH_IMM;
	unsigned char *at = write ? area(end, 2, number) : area(end, 1, wc->wr_id);
	if ((wc->wr_id != end->received && !end->srq) || number == from->sent || memcmp(at, &word, 8))
		is_wrong("message %lu is not the next one", number);
	if (wc->wc_flags & IBV_WC_WITH_IMM && ntohl(wc->imm_data) != number)
		is_wrong("message %lu has another one's immediate", number);
	end->received++;
	post_receive(end);
}

static void check_done(struct end *end, const struct ibv_wc *wc)
{
	static const enum ibv_wc_opcode opcodes[] = {
		[IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE, [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
		[IBV_WR_SEND] = IBV_WC_SEND, [IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND, [IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ};

	while (end->done < wc->wr_id && !end->signaled[end->done])
		end->done++;
	if (wc->wr_id != end->done || end->done >= end->sent)
		is_wrong("completion %lu is not the next one, %lu", (unsigned long)wc->wr_id, end->done);
	else if (wc->opcode != opcodes[end->kinds[wc->wr_id]])
		is_wrong("completion %lu is of another opcode", (unsigned long)wc->wr_id);
	else if (end->kinds[wc->wr_id] == IBV_WR_RDMA_READ && *area(end, 0, wc->wr_id) != wc->wr_id % SLOTS + 1)
		is_wrong("READ %lu has other data", (unsigned long)wc->wr_id);
	end->done++;
}

static void look(struct end *end)
{
	struct ibv_wc wc[4];
	int found = ibv_poll_cq(end->cq, (int)draw(4) + 1, wc);

	for (int i = 0; i < found; i++) {
		if (end->qp->state != (is_one_way && end == &ends[1] ? IBV_QPS_RTR : IBV_QPS_RTS) && !end->error)
			is_wrong("its queue pair is in another state");
		if (wc[i].qp_num != end->qp->qp_num)
			is_wrong("another queue pair's completion");
		if (wc[i].status)
			end->error = 1;
		else if (wc[i].opcode & IBV_WC_RECV)
			check_received(end, &wc[i]);
		else
			check_done(end, &wc[i]);
	}
	if (found <= 0)
		sched_yield();
}

static void check_writes(const struct end *end)
{
	unsigned long at = 0;

	for (unsigned long number = 0; number < end->sent; number++) {
		if (end->kinds[number] != IBV_WR_RDMA_WRITE && end->kinds[number] != IBV_WR_RDMA_WRITE_WITH_IMM)
			continue;
		while (at < fabric_log.count && fabric_log.words[at] >> 56 != word_of(end, 0) >> 56)
			at++;
		if (at == fabric_log.count || fabric_log.words[at++] != word_of(end, number))
			is_wrong("write %lu was not the next one carried out", number);
	}
	while (at < fabric_log.count && fabric_log.words[at] >> 56 != word_of(end, 0) >> 56)
		at++;
	if (at < fabric_log.count)
		is_wrong("a write was carried out twice");
}

static void check_time(double until_s)
{
	if (now_s() > until_s)
		is_wrong("stands still: sent %lu %lu, done %lu %lu, received %lu %lu, errors %d %d", ends[0].sent, ends[1].sent,
			 ends[0].done, ends[1].done, ends[0].received, ends[1].received, ends[0].error, ends[1].error);
}

/* Both ends work until each has so many messages done, or an error came to either, which must come to both. `at` is the step
   before which something happens. */
static void work(unsigned long messages, unsigned long at, void (*happens)(void))
{
	double until_s = now_s() + 8;
	unsigned long steps = 0, back = is_one_way ? 0 : messages;

	while (!*wrong && (ends[0].done < messages || ends[1].done < back) && !(ends[0].error && ends[1].error)) {
		if (happens && steps++ == at)
			happens();
		for (int i = 0; i < 2; i++) {
			struct end *end = &ends[i];
			if (end->sent < (i ? back : messages) && end->sent - end->done < OUTSTANDING && draw(2) && !end->error)
				post(end);
			look(end);
		}
		check_time(until_s);
	}
}

/* Without traffic, for so long. */
static void wait_s(double seconds)
{
	double until_s = now_s() + seconds;

	while (now_s() < until_s)
		look(&ends[draw(2)]), sched_yield();
}

static void begin(unsigned long seed)
{
	struct ibv_wc left; /* of queue pairs that were destroyed */

	state = seed * 0x9E3779B97F4A7C15ull + 1;
	fabric_lag = draw(12);
	fabric_log.count = 0;
	memset(fabric_carried, 0, sizeof fabric_carried);
	*wrong = 0;
	for (int i = 0; i < 2; i++)
		while (ibv_poll_cq(ends[i].cq, 1, &left) > 0)
			continue;
	make_others();
	make_qp(&ends[0]), make_qp(&ends[1]);
	connect_qp(&ends[0]), connect_qp(&ends[1]);
}

static const char *end(void)
{
	if (fabric_tells_packets && !ends[0].error)
		check_writes(&ends[0]), check_writes(&ends[1]);
	for (int i = 0; i < 2; i++) {
		ibv_destroy_qp(ends[i].qp);
		if (is_shared)
			ibv_destroy_srq(ends[i].srq);
		for (int n = 0; n < other_count; n++)
			ibv_destroy_qp(others[i][n]);
	}
	for (int i = 0; i < NICS; i++)
		fabric_repair(i);
	return *wrong ? wrong : ends[0].error ? "error" : fabric_carried[1] + fabric_carried[3] ? "exact, moved" : "exact";
}

static void fail_one(void)
{
	fabric_fail(2 * (int)draw(2), (enum fabric_failure)(WITH_EVENT + draw(kinds)));
}

static void fail_own(void)
{
	fabric_fail(0, WITH_EVENT);
}

static void fail_all(void)
{
	fabric_fail(0, WITH_EVENT), fabric_fail(1, WITH_EVENT);
}

static void fail_far_twin(void)
{
	fabric_fail(3, WITH_ERRORS);
}

/* --- what the driver may be asked for --- */

static void one_loss(void)
{
	wait_s(0.03); /* the twins are connected */
	work(MESSAGES, draw(MESSAGES), fail_one);
}

static void both_lost(void)
{
	wait_s(0.03);
	work(MESSAGES, draw(MESSAGES), fail_all);
}

static void no_loss(void)
{
	work(MESSAGES, 0, NULL);
}

/* Nothing fails, while nobody waits for a completion of what was posted last. */
static void a_pause(void)
{
	wait_s(0.03);
	work(MESSAGES, 0, NULL);
	is_silent = 1;
	for (int i = 0; i < 3; i++)
		post(&ends[0]);
	is_silent = 0;
	wait_s(0.3);
	work(2 * MESSAGES, 0, NULL);
}

/* Nothing fails, while a program does not look for what is complete. */
static void a_look_away(void)
{
	wait_s(0.03);
	work(MESSAGES, 0, NULL);
	for (int i = 0; i < 16; i++)
		post(&ends[0]);
	for (double until_s = now_s() + 0.3; now_s() < until_s; sched_yield())
		look(&ends[1]);
	work(2 * MESSAGES, 0, NULL);
}

/* A NIC fails, is repaired and used again; later its twin is of no use, and what works then is the NIC itself. */
static void a_return(void)
{
	wait_s(0.03);
	work(MESSAGES, draw(MESSAGES), fail_own);
	fabric_repair(0);
	wait_s(1.6);
	unsigned long before = fabric_carried[1];
	work(2 * MESSAGES, 0, fail_far_twin);
	if (fabric_carried[1] > before)
		is_wrong("it has not returned");
}

/* The NIC is back, and proven, when that of the peer fails: nothing is to return there. */
static void a_broken_return(void)
{
	wait_s(0.03);
	work(MESSAGES, draw(MESSAGES), fail_own);
	fabric_repair(0);
	wait_s(0.55);
	fabric_fail(2, WITH_EVENT);
	wait_s(2.5);
	work(2 * MESSAGES, 0, NULL);
}

/* The NIC fails, and the peer ends, when all has come there and not all is acknowledged: that is complete. */
static void a_farewell(void)
{
	fabric_lag = MESSAGES;
	is_plain = 1;
	wait_s(0.03);
	while (ends[0].sent < OUTSTANDING)
		post(&ends[0]);
	while (ends[1].received < OUTSTANDING)
		look(&ends[1]);
	fabric_fail(0, WITH_EVENT);
	ibv_destroy_qp(ends[1].qp);
	ends[0].error = 1; /* its receives come back so */
	for (double until_s = now_s() + 4; ends[0].done < ends[0].sent && !*wrong; check_time(until_s))
		look(&ends[0]);
	ends[0].error = 0;
	make_qp(&ends[1]);
}

/* The NIC is back when its twin fails. */
static void a_second_loss(void)
{
	wait_s(0.03);
	work(MESSAGES, draw(MESSAGES), fail_own);
	fabric_repair(0);
	wait_s(0.4);
	work(2 * MESSAGES, draw(MESSAGES), fail_far_twin);
}

/* A batch of more requests than there is room for is refused as a whole. */
static void a_batch(void)
{
	struct end *end = &ends[0];
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(end->qp);

	wait_s(0.03);
	while (end->sent < OUTSTANDING - 2)
		post(end);
	ibv_wr_start(qp);
	for (unsigned long i = 0; i < 4; i++) {
		unsigned long long *from = (void *)area(end, 0, end->sent + i);
		*from = word_of(end, end->sent + i);
		qp->wr_id = end->sent + i;
		qp->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(qp, other(end)->mr->rkey, (uintptr_t)area(other(end), 2, end->sent + i));
		ibv_wr_set_sge(qp, end->mr->lkey, (uintptr_t)from, BYTES);
	}
	if (!ibv_wr_complete(qp))
		is_wrong("a batch without room is taken");
	work(MESSAGES, draw(MESSAGES), fail_one);
}

/* One NIC after another fails and is repaired, sooner or later: perhaps before the twin is there again. */
static void a_storm(void)
{
	wait_s(0.03);
	for (unsigned long loss = 1; loss <= 6 && !ends[0].error && !*wrong; loss++) {
		int nic = (int)draw(PAIRED);
		fabric_fail(nic, (enum fabric_failure)(WITH_EVENT + draw(kinds)));
		work(loss * MESSAGES, 0, NULL);
		fabric_repair(nic);
		wait_s((double)draw(80) * 0.01);
	}
}

/* A child that looks at what it has of its parent's, and ends. */
static void fork_and_fail(void)
{
	pid_t child = fork();
	struct ibv_wc wc;

	if (!child) {
		ibv_poll_cq(ends[0].cq, 0, &wc);
		ibv_destroy_qp(ends[1].qp);
		_exit(0);
	}
	int status = 0;
	if (child < 0 || waitpid(child, &status, 0) != child || status)
		is_wrong("a child ended with status %d", status);
	fail_one();
}

/* Nothing fails, and some of the queue pairs go to the other NIC. */
static void a_balance(void)
{
	wait_s(0.1);
	unsigned long before = fabric_carried[1];
	work(MESSAGES, 0, NULL);
	unsigned long there = (fabric_carried[1] > before) + count_others_at(1);
	if (there != balanced)
		is_wrong("%lu of %d queue pairs are at the other NIC", there, other_count + 1);
}

/* Of three NICs with two queue pairs each, one is lost: those of it go to the next one, of which one goes on to the third. */
static void a_ring(void)
{
	wait_s(0.1);
	fabric_fail(0, WITH_EVENT);
	wait_s(4.0);
	unsigned long at[] = {count_others_at(0), count_others_at(1), count_others_at(4)};
	if (at[0] || at[1] != 2 || at[2] != 3) /* and the end's own at the second */
		is_wrong("%lu, %lu and %lu queue pairs are at the three NICs", at[0], at[1], at[2]);
	work(MESSAGES, 0, NULL);
}

/* Any NIC is lost when load is shared, and used again once it has been repaired. */
static void a_balanced_loss(void)
{
	int lost = (int)draw(PAIRED);

	wait_s(0.1);
	fabric_fail(lost, WITH_ERRORS);
	work(MESSAGES, 0, NULL);
	fabric_repair(lost);
	wait_s(1.6);
	work(2 * MESSAGES, draw(MESSAGES), fail_one);
}

static void a_fork(void)
{
	wait_s(0.03);
	work(MESSAGES, draw(MESSAGES), fork_and_fail);
}

/* A program that waits for events of its completion queue. */
static void events(void)
{
	wait_s(0.03);
	for (int i = 0; i < 2; i++)
		ibv_req_notify_cq(ends[i].cq, 0);
	work(MESSAGES, draw(MESSAGES), fail_own);
}

/* More receives than a shared receive queue had room for at first. */
static void a_larger_queue(void)
{
	struct ibv_srq_attr larger = {.max_wr = 2 * RECEIVES};

	wait_s(0.03);
	for (int i = 0; i < 2; i++) {
		if (ibv_modify_srq(ends[i].srq, &larger, IBV_SRQ_MAX_WR))
			is_wrong("a shared receive queue stays small");
		for (int more = 0; more < RECEIVES; more++)
			post_receive(&ends[i]);
	}
	work(MESSAGES, draw(MESSAGES), fail_one);
}

/* An agent that takes its time holds nobody up. */
static void a_silent_agent(void)
{
	double until_s = now_s() + 1.5, waited_s = 0;

	while (now_s() < until_s) {
		double began_s = now_s();
		struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT};
		struct ibv_qp_init_attr made = {.send_cq = ends[0].cq, .recv_cq = ends[0].cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
		struct ibv_qp *qp = ibv_create_qp(ends[0].pd, &made);
		ibv_modify_qp(qp, &init, IBV_QP_STATE);
		ibv_destroy_qp(qp);
		double took_s = now_s() - began_s;
		waited_s += took_s > 0.25 ? took_s : 0;
		wait_s(0.005);
	}
	if (waited_s > 0.75) /* half of the time; one long wait may be the machine's */
		is_wrong("queue pairs took %.2f s of 1.5 s", waited_s);
}

/* Events at a limit would not come from the other NIC. */
static void a_limit(void)
{
	struct ibv_srq_attr limit = {.srq_limit = 4};

	wait_s(0.03);
	for (int i = 0; i < 2; i++)
		ibv_modify_srq(ends[i].srq, &limit, IBV_SRQ_LIMIT);
	work(MESSAGES, draw(MESSAGES), fail_own);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*play)(void);
	} plays[] = {{"loss", one_loss}, {"counts", one_loss}, {"errors", one_loss}, {"shared", one_loss}, {"oneway", one_loss}, {"all", both_lost}, {"none", no_loss}, {"pause", a_pause}, {"return", a_return},
		     {"second", a_second_loss}, {"batch", a_batch}, {"larger", a_larger_queue}, {"limit", a_limit},
		     {"silent", a_silent_agent}, {"storm", a_storm}, {"fork", a_fork}, {"events", events}, {"balance", a_balance}, {"receiver", a_balance}, {"alone", a_balance}, {"faster", a_balance}, {"balanced", a_balanced_loss}, {"ring", a_ring}, {"broken", a_broken_return}, {"farewell", a_farewell}, {"away", a_look_away}};
	struct ibv_device **devices = ibv_get_device_list(NULL);

	if (argc < 4)
		return 2;
	is_shared = !strcmp(argv[1], "shared") || !strcmp(argv[1], "larger") || !strcmp(argv[1], "limit");
	is_one_way = !strcmp(argv[1], "oneway") || !strcmp(argv[1], "receiver");
	other_count = !strcmp(argv[1], "balance") || !strcmp(argv[1], "receiver") || !strcmp(argv[1], "faster") ||
			      !strcmp(argv[1], "balanced") ? 3 : 0;
	balanced = !strcmp(argv[1], "faster") ? 3 : other_count ? 2 : 0;
	if (!strcmp(argv[1], "faster"))
		fabric_speed[1] = fabric_speed[3] = 128; /* four times that of the others */
	if (!strcmp(argv[1], "ring"))
		spot_count = 3, other_count = 5; /* and that of the end itself */
	for (int i = 0; i < 2; i++)
		open_end(&ends[i], 2 * i, devices), open_spots(i, devices);
	is_extended = !strcmp(argv[1], "batch");
	fabric_tells_packets = strcmp(argv[1], "counts") != 0;
	kinds = fabric_tells_packets && strcmp(argv[1], "errors") ? 3 : 2; /* else only the NIC itself would notice the third */
	for (unsigned long seed = strtoul(argv[2], NULL, 0); seed <= strtoul(argv[3], NULL, 0); seed++) {
		begin(seed);
		for (size_t i = 0; i < sizeof plays / sizeof *plays; i++)
			if (!strcmp(plays[i].name, argv[1]))
				plays[i].play();
		printf("%s\n", end());
		fflush(stdout);
	}
	return 0;
}
