#include "kept.h"

#include <stdlib.h>
#include <string.h>

/* One place more than requests: what is known of the newest completed one is still asked for. */
static uint64_t places_for(uint32_t most)
{
	uint64_t places = 4;

	while (places < (uint64_t)most + 2)
		places *= 2;
	return places;
}

int sends_make(struct sends *sends, const struct ibv_qp_cap *size, int all_signaled)
{
	uint64_t places = places_for(size->max_send_wr);

	*sends = (struct sends){.mask = places - 1, .most = size->max_send_wr, .all_signaled = all_signaled};
	sends->most_parts = size->max_send_sge ? size->max_send_sge : 1;
	sends->most_bytes = size->max_inline_data;
	sends->requests = calloc(places, sizeof *sends->requests);
	sends->parts = calloc(places, sends->most_parts * sizeof *sends->parts);
	sends->data = calloc(places, sends->most_bytes + 1);
	if (sends->requests && sends->parts && sends->data)
		return 1;
	sends_free(sends);
	return 0;
}

int receives_make(struct receives *receives, const struct ibv_qp_cap *size)
{
	uint64_t places = places_for(size->max_recv_wr);

	*receives = (struct receives){.mask = places - 1, .most = size->max_recv_wr};
	receives->most_parts = size->max_recv_sge ? size->max_recv_sge : 1;
	receives->requests = calloc(places, sizeof *receives->requests);
	receives->parts = calloc(places, receives->most_parts * sizeof *receives->parts);
	if (receives->requests && receives->parts)
		return 1;
	receives_free(receives);
	return 0;
}

void sends_free(struct sends *sends)
{
	free(sends->requests);
	free(sends->parts);
	free(sends->data);
	*sends = (struct sends){0};
}

void receives_free(struct receives *receives)
{
	free(receives->requests);
	free(receives->parts);
	*receives = (struct receives){0};
}

uint64_t sends_told_before(const struct sends *sends, uint64_t number)
{
	return number ? sends_at(sends, number - 1)->told : 0;
}

uint64_t sent_bytes(const struct sent_request *request)
{
	uint64_t bytes = 0;

	for (int i = 0; i < request->wr.num_sge; i++)
		bytes += request->wr.sg_list[i].length;
	return bytes;
}

enum ibv_wc_opcode sent_opcode(const struct sent_request *request)
{
	switch (request->wr.opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	default:
		return IBV_WC_SEND;
	}
}

/* The data of an inline request are the program's again after the post. Returns 0 for more than the queue pair takes. */
static int copy_data(struct sends *sends, uint64_t place, struct ibv_send_wr *copy, const struct ibv_send_wr *request)
{
	unsigned char *data = sends->data + place * (sends->most_bytes + 1);
	uint32_t bytes = 0;

	for (int i = 0; i < request->num_sge; i++) {
		const struct ibv_sge *part = &request->sg_list[i];
		if (part->length > sends->most_bytes - bytes)
			return 0;
		memcpy(data + bytes, (const void *)(uintptr_t)part->addr, part->length);
		bytes += part->length;
	}
	copy->sg_list[0] = (struct ibv_sge){.addr = (uintptr_t)data, .length = bytes};
	copy->num_sge = 1;
	return 1;
}

int sends_add(struct sends *sends, const struct ibv_send_wr *request)
{
	uint64_t number = sends->at.head, place = number & sends->mask;
	struct sent_request *kept = &sends->requests[place];
	struct ibv_sge *parts = sends->parts + place * sends->most_parts;

	if (number - *(volatile uint64_t *)&sends->at.done >= sends->most || request->num_sge > (int)sends->most_parts)
		return 0;
	kept->wr = *request;
	kept->wr.next = NULL;
	kept->wr.sg_list = parts;
	if (request->send_flags & IBV_SEND_INLINE) {
		if (!copy_data(sends, place, &kept->wr, request))
			return 0;
	} else {
		for (int i = 0; i < request->num_sge; i++)
			parts[i] = request->sg_list[i];
	}
	kept->wr_id = request->wr_id;
	kept->signaled = sends->all_signaled || request->send_flags & IBV_SEND_SIGNALED;
	kept->executed = 0;
	kept->told = sends_told_before(sends, number) + (uint64_t)is_told(request);
	sends->at.head++;
	return 1;
}

int receives_add(struct receives *receives, const struct ibv_recv_wr *request)
{
	uint64_t number = receives->at.head, place = number & receives->mask;
	struct received_request *kept = &receives->requests[place];

	if (number - *(volatile uint64_t *)&receives->at.done >= receives->most || request->num_sge > (int)receives->most_parts)
		return 0;
	kept->wr = *request;
	kept->wr.next = NULL;
	kept->wr.sg_list = receives->parts + place * receives->most_parts;
	for (int i = 0; i < request->num_sge; i++)
		kept->wr.sg_list[i] = request->sg_list[i];
	kept->wr_id = request->wr_id;
	receives->at.head++;
	return 1;
}
