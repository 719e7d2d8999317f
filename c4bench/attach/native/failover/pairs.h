/* A queue pair of the program (RC) and its twin at the second NIC, connected with it: what is posted to the first can go on at
   the second. Programs see the first one's number only. */
#pragma once

#include "../address.h"
#include "../bias.h"
#include "kept.h"
#include "queues.h"

#pragma GCC visibility push(hidden)

enum state {
	YOUNG,  /* the twin is not connected yet */
	READY,  /* it is: an error of the NIC is withheld from the program */
	MOVING, /* between the two: what is posted waits (fence.c) */
	PLAIN,  /* does not move (any more): errors are the program's */
	LOST    /* could not move: all that was and is posted comes back as errors */
};

enum { HEARD = 1, CONNECTED = 2, SURE = 3 };
enum probe { NO_PROBE, PROBING, ANSWERED, UNANSWERED };

/* What this end knows of the other one. */
struct peer {
	char address[ADDRESS_BYTES];
	uint32_t number;
	uint32_t tag; /* of its connection, from its first word; 0 before */
	uint32_t twin_number, twin_packet;
	union ibv_gid twin_gid;
	int shares; /* the pair's load may be shared */
	int knows; /* HEARD: it has our greeting; CONNECTED: it has connected its twin; SURE: and knows that we have */
	int awaits; /* it has greeted without being sure, and gets an answer */
};

/* With which packet numbers both ends of a connection begin, as one end has them. */
struct beginning {
	uint32_t own, peers;
};

/* What an end says of a fence: its number, which of this end's words about it, how many messages its program was told of, which
   packet the old queue pair would take next, how the new one is connected, and whether it moves to share load. */
struct fence_word {
	uint32_t move, version;
	uint64_t used;
	int64_t packet;
	struct beginning new_side;
	int leads;
};

/* A move from one side to the other. */
struct move {
	enum { NO_MOVE, DRAINING, AWAITING } phase;
	uint64_t began_ns, sent_ns;
	struct fence_word said, told; /* the newest, by us and by the peer */
	int connected_again;
	int leads; /* this end has begun it to share load */
	uint64_t unproven_at; /* what had been carried when it last moved to a side that was not connected */
};

/* Whether requests get on. */
struct stall {
	uint64_t done; /* the number of the oldest that is not complete, since then */
	uint64_t since_ns, asked_ns;
	uint64_t carried; /* all given were carried out when so many had been, and the program waits for none of them */
	long long packet; /* that the peer expects, and in how many answers in a row it was that one before */
	int same;
};

/* The side that is not used: connected again after a failure, and proven by a write of no bytes. */
struct standby {
	int made_ready; /* it can be connected, from our packet number of this side on */
	uint32_t told_packet; /* the peer's */
	int told;
	int proven;
	uint64_t proven_ns, answered_ns, next_ns, said_ns;
	uint64_t pause_ns; /* before it is tried again: longer after each failure */
};

/* Keys of the peer's memory, and of their twins. */
struct foreign_key {
	uint32_t own, twin;
};

struct pair {
	struct pair *next;
	struct nic *nic;
	struct ibv_qp *qp[SIDES];
	struct queue *send_queue, *receive_queue;
	struct pool *pool; /* of its shared receive queue; NULL for one of its own */
	int ended;         /* its peer has gone: nothing comes any more */
	_Atomic enum state state;
	atomic_int wanted;   /* something has failed: move */
	atomic_int hopeless; /* something cannot go on at the twin */
	uint64_t wanted_ns;

	/* Of threads that post; `posting` is their lock. `side` and `epoch` change under the queue's lock, too. */
	struct bias posting;
	struct sends sends;
	int send_side;
	uint32_t send_epoch;
	int holding; /* what is posted waits until the twin of `missing_key` is known */
	uint32_t missing_key;
	uint32_t packets[SIDES]; /* the next packet sequence number */
	struct beginning beginning; /* of the side that is not used, since it was connected */
	int connected[SIDES]; /* it can receive */
	int sending[SIDES];   /* it can send; a program that only receives need not make its queue pair do that */
	uint64_t mixed_until; /* requests before this number were posted before the newest move: some may be executed */

	struct bias receiving;
	struct receives receives;
	int receive_side;
	uint32_t receive_epoch;
	int receives_wait;

	/* The first error that was withheld. */
	enum ibv_wc_status error;
	uint32_t vendor_error;

	/* How it is connected; of the keeper's thread from RTR on. */
	struct ibv_qp_attr init, to_receive, to_send;
	int init_as, receives_as, sends_as; /* the masks of the modifications, 0 before them */
	uint32_t bytes_a_packet;
	char address[ADDRESS_BYTES];
	uint32_t tag;
	struct peer peer;
	int hopes; /* the peer may answer still */
	uint64_t since_ns, greet_ns, greeted_ns, asked_key_ns;
	struct move move;
	struct standby standby;
	struct stall stall;
	long long answered; /* the packet that the peer was last said to be expected */
	atomic_int probe; /* of the side that is not used: one of enum probe */
	uint32_t probes;  /* counts its connections, each of which has one probe */
	int placed; /* it has been where it belongs once */
	int led;    /* the peer says where that is */
	uint32_t moves; /* how many it has made since it was connected */
	struct foreign_key *keys;
	size_t key_count;
};

/* The pair of the program's queue pair; NULL for one that has no twin. */
struct pair *pair_of(const struct ibv_qp *qp);

/* Look at a completion that a device shows. Returns whether it is for the program, whose it then is in all its parts. The
   caller has the queue's lock. */
int pair_complete(const struct nic *nic, int side, struct ibv_wc *completion);

/* Give to the devices what waits for them. The caller has the lock of those that post, or receive. They return errno. */
int pair_give_sends(struct pair *pair);
int pair_give_receives(struct pair *pair);

/* Post a write of no bytes to the side that is not used. Returns errno. */
int pair_probe(struct pair *pair, int side);

/* All that is outstanding comes back to the program as errors, as the device would return it. */
void pair_fail(struct pair *pair);

/* Modify a queue pair behind its program, which may look at the state in the handle (UCX does); return errno. */
int pair_change(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask);
int pair_set(struct ibv_qp *qp, enum ibv_qp_state state);

/* Post all of a list or nothing. Returns errno. */
int pair_post_all(struct pair *pair, struct ibv_send_wr *first);

/* In place of the device's functions. */
int pair_post_send(struct ibv_qp *qp, struct ibv_send_wr *first, struct ibv_send_wr **bad);
int pair_post_receive(struct ibv_qp *qp, struct ibv_recv_wr *first, struct ibv_recv_wr **bad);
struct ibv_qp *pair_create_extended(struct ibv_context *context, struct ibv_qp_init_attr_ex *attributes);

#pragma GCC visibility pop
