/* cost N: the least time of N batches of calls, in ns a call: posts of one signaled write, completions, vain polls. */
#include "fake_verbs.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CALLS = 120, DEPTH = 128 };

static struct ibv_context *context;
static struct ibv_cq queue;
static struct ibv_qp *qp;

static double now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void post(enum ibv_wr_opcode opcode, int count)
{
	struct ibv_sge part = {.length = 65536};
	struct ibv_send_wr request = {.sg_list = &part, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED}, *bad;

	for (int i = 0; i < count; i++)
		ibv_post_send(qp, &request, &bad);
}

static void poll_one(int count)
{
	struct ibv_wc wc;

	for (int i = 0; i < count; i++)
		ibv_poll_cq(&queue, 1, &wc);
}

int main(int count, char **words)
{
	const char *const names[4] = {"post_write", "complete", "post_send", "poll_in_vain"};
	double best[4] = {1e9, 1e9, 1e9, 1e9};
	struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_RTR, .ah_attr = {.is_global = 1, .port_num = 1}};

	context = ibv_open_device(NULL);
	queue.context = context;
	qp = fake_qp(&queue, DEPTH, 0);
	ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN);
	for (int batch = 0; batch < (count > 1 ? atoi(words[1]) : 20000); batch++) {
		double times[5];
		post(IBV_WR_RDMA_WRITE, 1);
		times[0] = now_ns();
		post(IBV_WR_RDMA_WRITE, CALLS);
		times[1] = now_ns();
		poll_one(CALLS);
		times[2] = now_ns();
		poll_one(1), post(IBV_WR_SEND, 1);
		times[3] = now_ns();
		post(IBV_WR_SEND, CALLS);
		times[4] = now_ns();
		poll_one(CALLS + 1);
		double vain = now_ns();
		poll_one(CALLS);
		double took[4] = {times[1] - times[0], times[2] - times[1], times[4] - times[3], now_ns() - vain};
		for (int i = 0; i < 4; i++)
			best[i] = took[i] < best[i] ? took[i] : best[i];
	}
	for (int i = 0; i < 4; i++)
		printf("%s %.2f\n", names[i], best[i] / CALLS);
	return 0;
}
