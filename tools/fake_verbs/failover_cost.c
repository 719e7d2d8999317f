/* failover_cost N: the least time of N batches of calls, in ns a call, between two connected queue pairs of fabric.c: posts of
   receives and of signaled sends, and completions of sends. */
#include "fabric.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CALLS = 32, BYTES = 64, CONNECTED_NS = 200000000 };

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	unsigned char memory[BYTES];
};

static struct end ends[2];

static double now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void make(struct end *end, struct ibv_device *device)
{
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT};

	end->context = ibv_open_device(device);
	end->pd = ibv_alloc_pd(end->context);
	end->mr = ibv_reg_mr(end->pd, end->memory, BYTES, IBV_ACCESS_LOCAL_WRITE);
	end->cq = ibv_create_cq(end->context, 4 * CALLS, NULL, NULL, 0);
	struct ibv_qp_init_attr made = {.send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC,
					.cap = {2 * CALLS, 2 * CALLS, 1, 1, 0}};
	end->qp = ibv_create_qp(end->pd, &made);
	ibv_modify_qp(end->qp, &init, IBV_QP_STATE);
}

static void join(struct end *end, const struct end *other)
{
	struct ibv_qp_attr receive = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = other->qp->qp_num,
				      .ah_attr = {.is_global = 1, .port_num = 1, .grh.sgid_index = 1}};
	struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS};

	ibv_query_gid(other->context, 1, 1, &receive.ah_attr.grh.dgid);
	ibv_modify_qp(end->qp, &receive, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
	ibv_modify_qp(end->qp, &send, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

static void post(void)
{
	struct ibv_sge part = {(uintptr_t)ends[0].memory, BYTES, ends[0].mr->lkey};
	struct ibv_send_wr request = {.sg_list = &part, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;

	for (int i = 0; i < CALLS; i++)
		ibv_post_send(ends[0].qp, &request, &bad);
}

static void post_receives(void)
{
	struct ibv_sge part = {(uintptr_t)ends[1].memory, BYTES, ends[1].mr->lkey};
	struct ibv_recv_wr request = {.sg_list = &part, .num_sge = 1}, *bad;

	for (int i = 0; i < CALLS; i++)
		ibv_post_recv(ends[1].qp, &request, &bad);
}

static void complete(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	for (int found = 0; found < CALLS;)
		found += ibv_poll_cq(cq, 1, &wc) > 0;
}

int main(int count, char **words)
{
	const char *const names[3] = {"post_receive", "post_send", "complete"};
	struct timespec until_connected = {0, CONNECTED_NS};
	double best[3] = {1e9, 1e9, 1e9};
	struct ibv_device **devices = ibv_get_device_list(NULL);

	make(&ends[0], devices[0]), make(&ends[1], devices[2]);
	join(&ends[0], &ends[1]), join(&ends[1], &ends[0]);
	nanosleep(&until_connected, NULL);
	fabric_lag = 0;
	for (int batch = 0; batch < (count > 1 ? atoi(words[1]) : 20000); batch++) {
		double times[4] = {now_ns()};
		post_receives();
		times[1] = now_ns();
		post();
		times[2] = now_ns();
		complete(ends[0].cq);
		times[3] = now_ns();
		complete(ends[1].cq);
		for (int i = 0; i < 3; i++)
			best[i] = times[i + 1] - times[i] < best[i] ? times[i + 1] - times[i] : best[i];
	}
	for (int i = 0; i < 3; i++)
		printf("%s %.2f\n", names[i], best[i] / CALLS);
	return 0;
}
