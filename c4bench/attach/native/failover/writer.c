#include "writer.h"

#include "../say.h"
#include "../table.h"
#include "next.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct writer {
	struct bias lock; /* from wr_start to wr_complete */
	int owned;
	struct ibv_qp_ex *handle;
	struct pair *pair;
	struct ibv_send_wr *requests;
	struct ibv_sge *parts;
	size_t most, most_parts, count;
	int failed;
};

static struct table writers;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

static struct writer *writer_of(const struct ibv_qp_ex *handle)
{
	return table_get(&writers, (uintptr_t)&handle->qp_base);
}

static void start(struct ibv_qp_ex *handle)
{
	struct writer *writer = writer_of(handle);
	int owned = bias_enter(&writer->lock);

	writer->owned = owned;
	writer->count = 0;
	writer->failed = 0;
}

static int complete(struct ibv_qp_ex *handle)
{
	struct writer *writer = writer_of(handle);
	int failed = writer->failed;

	for (size_t i = 0; i + 1 < writer->count; i++)
		writer->requests[i].next = &writer->requests[i + 1];
	if (!failed && writer->count)
		failed = pair_post_all(writer->pair, writer->requests);
	bias_leave(&writer->lock, writer->owned);
	return failed;
}

static void give_up(struct ibv_qp_ex *handle)
{
	struct writer *writer = writer_of(handle);

	bias_leave(&writer->lock, writer->owned);
}

static struct ibv_send_wr *add(struct ibv_qp_ex *handle, enum ibv_wr_opcode opcode)
{
	struct writer *writer = writer_of(handle);

	if (writer->count == writer->most) {
		writer->failed = ENOMEM;
		writer->count--;
	}
	struct ibv_send_wr *request = &writer->requests[writer->count];
	memset(request, 0, sizeof *request);
	request->opcode = opcode;
	request->wr_id = handle->wr_id;
	request->send_flags = handle->wr_flags;
	request->sg_list = writer->parts + writer->count * writer->most_parts;
	writer->count++;
	return request;
}

static void at(struct ibv_send_wr *request, uint32_t key, uint64_t address)
{
	request->wr.rdma.rkey = key;
	request->wr.rdma.remote_addr = address;
}

static void rdma_write(struct ibv_qp_ex *handle, uint32_t key, uint64_t address)
{
	at(add(handle, IBV_WR_RDMA_WRITE), key, address);
}

static void rdma_write_imm(struct ibv_qp_ex *handle, uint32_t key, uint64_t address, __be32 immediate)
{
	struct ibv_send_wr *request = add(handle, IBV_WR_RDMA_WRITE_WITH_IMM);

	at(request, key, address);
	request->imm_data = immediate;
}

static void rdma_read(struct ibv_qp_ex *handle, uint32_t key, uint64_t address)
{
	at(add(handle, IBV_WR_RDMA_READ), key, address);
}

static void send_plain(struct ibv_qp_ex *handle)
{
	add(handle, IBV_WR_SEND);
}

static void send_imm(struct ibv_qp_ex *handle, __be32 immediate)
{
	add(handle, IBV_WR_SEND_WITH_IMM)->imm_data = immediate;
}

static void send_inv(struct ibv_qp_ex *handle, uint32_t key)
{
	add(handle, IBV_WR_SEND_WITH_INV)->invalidate_rkey = key;
}

static void compare_and_swap(struct ibv_qp_ex *handle, uint32_t key, uint64_t address, uint64_t compare, uint64_t swap)
{
	struct ibv_send_wr *request = add(handle, IBV_WR_ATOMIC_CMP_AND_SWP);

	request->wr.atomic.rkey = key;
	request->wr.atomic.remote_addr = address;
	request->wr.atomic.compare_add = compare;
	request->wr.atomic.swap = swap;
}

static void fetch_and_add(struct ibv_qp_ex *handle, uint32_t key, uint64_t address, uint64_t value)
{
	struct ibv_send_wr *request = add(handle, IBV_WR_ATOMIC_FETCH_AND_ADD);

	request->wr.atomic.rkey = key;
	request->wr.atomic.remote_addr = address;
	request->wr.atomic.compare_add = value;
}

static void bind_window(struct ibv_qp_ex *handle, struct ibv_mw *window, uint32_t key, const struct ibv_mw_bind_info *bound)
{
	(void)window;
	(void)key;
	(void)bound;
	writer_of(handle)->failed = EOPNOTSUPP;
}

static void invalidate(struct ibv_qp_ex *handle, uint32_t key)
{
	add(handle, IBV_WR_LOCAL_INV)->invalidate_rkey = key;
}

static struct ibv_send_wr *newest(struct writer *writer)
{
	return &writer->requests[writer->count - 1];
}

static void add_part(struct writer *writer, uint64_t address, uint64_t bytes, uint32_t key)
{
	struct ibv_send_wr *request = newest(writer);

	if (request->num_sge == (int)writer->most_parts)
		writer->failed = ENOMEM;
	else
		request->sg_list[request->num_sge++] = (struct ibv_sge){address, (uint32_t)bytes, key};
}

static void set_sge(struct ibv_qp_ex *handle, uint32_t key, uint64_t address, uint32_t bytes)
{
	add_part(writer_of(handle), address, bytes, key);
}

static void set_sge_list(struct ibv_qp_ex *handle, size_t count, const struct ibv_sge *list)
{
	for (size_t i = 0; i < count; i++)
		add_part(writer_of(handle), list[i].addr, list[i].length, list[i].lkey);
}

/* The data must stay until wr_complete copies them: they are the program's until wr_set_inline_data returns. */
static void set_inline_data_list(struct ibv_qp_ex *handle, size_t count, const struct ibv_data_buf *list)
{
	struct writer *writer = writer_of(handle);
	struct sends *sends = &writer->pair->sends;
	struct ibv_send_wr *request = newest(writer);
	unsigned char *data = (unsigned char *)(writer->parts + writer->most * writer->most_parts) +
			      (writer->count - 1) * sends->most_bytes;
	uint32_t bytes = 0;

	for (size_t i = 0; i < count; i++) {
		if (list[i].length > sends->most_bytes - bytes) {
			writer->failed = ENOMEM;
			return;
		}
		memcpy(data + bytes, list[i].addr, list[i].length);
		bytes += (uint32_t)list[i].length;
	}
	request->send_flags |= IBV_SEND_INLINE;
	add_part(writer, (uintptr_t)data, bytes, 0);
}

static void set_inline_data(struct ibv_qp_ex *handle, void *address, size_t bytes)
{
	const struct ibv_data_buf one = {address, bytes};

	set_inline_data_list(handle, 1, &one);
}

#define REPLACE(handle, name, ours) \
	do { \
		if ((handle)->name) \
			(handle)->name = ours; \
	} while (0)

void writer_replace(struct pair *pair)
{
	struct writer *writer = table_get(&writers, (uintptr_t)pair->qp[OWN]);
	struct ibv_qp_ex *handle = writer ? writer->handle : NULL;

	if (!handle)
		return;
	REPLACE(handle, wr_start, start);
	REPLACE(handle, wr_complete, complete);
	REPLACE(handle, wr_abort, give_up);
	REPLACE(handle, wr_rdma_write, rdma_write);
	REPLACE(handle, wr_rdma_write_imm, rdma_write_imm);
	REPLACE(handle, wr_rdma_read, rdma_read);
	REPLACE(handle, wr_send, send_plain);
	REPLACE(handle, wr_send_imm, send_imm);
	REPLACE(handle, wr_send_inv, send_inv);
	REPLACE(handle, wr_atomic_cmp_swp, compare_and_swap);
	REPLACE(handle, wr_atomic_fetch_add, fetch_and_add);
	REPLACE(handle, wr_bind_mw, bind_window);
	REPLACE(handle, wr_local_inv, invalidate);
	REPLACE(handle, wr_set_sge, set_sge);
	REPLACE(handle, wr_set_sge_list, set_sge_list);
	REPLACE(handle, wr_set_inline_data, set_inline_data);
	REPLACE(handle, wr_set_inline_data_list, set_inline_data_list);
}

/* Where there is no memory the device's own functions would pass this library by: the program cannot post so at all. */
void writer_make(struct pair *pair)
{
	struct ibv_qp_ex *(*as_extended)(struct ibv_qp *) = (struct ibv_qp_ex * (*)(struct ibv_qp *))bare_verbs("ibv_qp_to_qp_ex");
	struct ibv_qp_ex *handle = as_extended ? as_extended(pair->qp[OWN]) : NULL;
	const struct sends *sends = &pair->sends;
	struct writer *writer = handle && handle->wr_start ? calloc(1, sizeof *writer) : NULL;

	if (!writer)
		return;
	writer->handle = handle;
	writer->pair = pair;
	writer->most = sends->most ? sends->most : 1;
	writer->most_parts = sends->most_parts;
	writer->requests = calloc(writer->most, sizeof *writer->requests);
	writer->parts = calloc(writer->most, writer->most_parts * sizeof *writer->parts + sends->most_bytes);
	pthread_mutex_lock(&table_lock);
	int known = writer->requests && writer->parts && table_set(&writers, (uintptr_t)pair->qp[OWN], writer);
	pthread_mutex_unlock(&table_lock);
	if (known) {
		writer_replace(pair);
		return;
	}
	say("no memory for what a queue pair's requests are gathered in");
	abort();
}

void writer_free(struct pair *pair)
{
	pthread_mutex_lock(&table_lock);
	struct writer *writer = table_take(&writers, (uintptr_t)pair->qp[OWN]);
	pthread_mutex_unlock(&table_lock);
	if (!writer)
		return;
	free(writer->requests);
	free(writer->parts);
	free(writer);
}
