/* What a program has posted to a queue pair and the device has not completed, as rings in which the place of a request is its
   number. The numbers of requests are also what the devices get in place of the program's `wr_id`. */
#pragma once

#include <infiniband/verbs.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

struct sent_request {
	struct ibv_send_wr wr; /* its sg_list lies in the ring */
	uint64_t wr_id;        /* the program's */
	uint64_t told;         /* how many of the requests up to this one the receiver's program is told of, by a completion */
	uint32_t packets_end;  /* the packet sequence number behind its last packet, on the side that it was given to */
	uint8_t signaled;
	uint8_t executed; /* at the peer, by another NIC: its place is taken by a write of no bytes */
};

struct received_request {
	struct ibv_recv_wr wr;
	uint64_t wr_id;
};

/* Requests from `done` up to `given` are at a device, those up to `head` are not yet. */
struct numbers {
	uint64_t done, given, head;
};

struct sends {
	struct numbers at;
	struct sent_request *requests;
	struct ibv_sge *parts;
	unsigned char *data; /* of inline requests */
	uint64_t mask;
	uint32_t most, most_parts, most_bytes;
	int all_signaled;
};

struct receives {
	struct numbers at;
	struct received_request *requests;
	struct ibv_sge *parts;
	uint64_t mask;
	uint32_t most, most_parts;
	uint64_t flushed; /* the device has given back those before this number without using them */
	uint64_t used;    /* how many have been completed with success */
};

/* Make rings for a queue pair of this size. Return 0 where there is no memory. */
int sends_make(struct sends *sends, const struct ibv_qp_cap *size, int all_signaled);
int receives_make(struct receives *receives, const struct ibv_qp_cap *size);
void sends_free(struct sends *sends);
void receives_free(struct receives *receives);

/* Append a request, with a copy of all that the program may change after its post. Returns 0 where there is no room. */
int sends_add(struct sends *sends, const struct ibv_send_wr *request);
int receives_add(struct receives *receives, const struct ibv_recv_wr *request);

static inline struct sent_request *sends_at(const struct sends *sends, uint64_t number)
{
	return &sends->requests[number & sends->mask];
}

static inline struct received_request *receives_at(const struct receives *receives, uint64_t number)
{
	return &receives->requests[number & receives->mask];
}

/* How many of the requests before this number the receiver's program is told of. */
uint64_t sends_told_before(const struct sends *sends, uint64_t number);

/* The bytes that a request carries. */
uint64_t sent_bytes(const struct sent_request *request);

/* The opcode of its completion. */
enum ibv_wc_opcode sent_opcode(const struct sent_request *request);

/* Whether the completion of a request says to the receiver's program that it has come. */
static inline int is_told(const struct ibv_send_wr *request)
{
	return request->opcode == IBV_WR_SEND || request->opcode == IBV_WR_SEND_WITH_IMM ||
	       request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

/* Whether it is of a kind that can be given to another NIC: atomics, windows and invalidations cannot. */
static inline int is_repeatable(const struct ibv_send_wr *request)
{
	return is_told(request) || request->opcode == IBV_WR_RDMA_WRITE || request->opcode == IBV_WR_RDMA_READ;
}

#pragma GCC visibility pop
