/* What a program does with its queues, on the way to the device. */
#include "device.h"
#include "time.h"

int hooked_poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *completions)
{
	int found = device_of(cq->context)->poll_cq(cq, most, completions);

	if (found > 0)
		progressed();
	else if (!found)
		waited_in_vain();
	return found;
}

int hooked_req_notify_cq(struct ibv_cq *cq, int solicited)
{
	return device_of(cq->context)->req_notify_cq(cq, solicited);
}

int hooked_post_send(struct ibv_qp *qp, struct ibv_send_wr *first, struct ibv_send_wr **bad)
{
	progressed();
	return device_of(qp->context)->post_send(qp, first, bad);
}
