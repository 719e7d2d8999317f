/* Why nothing is carried out twice, or not at all:

   A queue pair in the error state neither sends nor takes packets (InfiniBand specification, volume 1, 10.3.1.6). Each end takes
   its old queue pair there and waits until all receives have come back; what it then says of the past stays true, since no late
   packet can change it: how many messages its program was told of, and which packet it expects next. That number says which
   requests were carried out, for packets are taken in order; the count must say the same of those that end in a completion at the
   receiver. If a device's number does not, the count alone decides. Requests that were not carried out go to the new queue pair,
   in their order; one that was is not repeated, so no old flag is written over a newer one. A READ is repeated unless a later
   request with a fence was carried out, which waits for the READ. Places of requests that were carried out behind such a READ are
   taken by writes of no bytes: completions keep their order.

   The new queue pairs take each other's packets only if both were connected with the same numbers. Words by which these were agreed
   may have been late; so each end also says how its new queue pair is connected. One that has another number of the peer's than
   the peer itself connects again, at first with a number of its own that was not used before; each word replaces the earlier ones,
   and an end goes on when the peer's newest agrees with its own. It changes nothing more then, and nor does the peer. So the new
   queue pairs need not have been connected before; those that were save the time for that. */
#include "fence.h"

#include "../real.h"
#include "../say.h"
#include "balance.h"
#include "keeper.h"
#include "memory.h"
#include "next.h"
#include "pools.h"
#include "stall.h"
#include "standby.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PACKETS = 1 << 24, MS = 1000000 };
/* How long receives may take to come back, and the peer to answer; how often a word is repeated. */
static const uint64_t DRAIN_NS = 20 * MS, ANSWER_NS = 2000ull * MS, AGAIN_NS = 20 * MS, LOOK_NS = MS / 2;
/* How long and how often a peer is greeted: it may be about to connect. */
static const uint64_t GREET_FIRST_NS = 5 * MS, GREET_AGAIN_NS = 200 * MS, GREET_FOR_NS = 5000ull * MS;
/* How long a failure may wait for a twin that is being connected. */
static const uint64_t CONNECT_NS = 1000ull * MS;
/* How long the end of a key waits for peers that know its twin. */
static const uint64_t FORGET_NS = 500 * MS;

void fence_ends(const struct pair *pair, struct end *own, struct end *peer)
{
	memcpy(own->address, pair->address, sizeof own->address);
	own->number = pair->qp[OWN]->qp_num;
	memcpy(peer->address, pair->peer.address, sizeof peer->address);
	peer->number = pair->peer.number;
}

void fence_tell(const struct pair *pair, const char *word)
{
	char line[WORD_BYTES];
	struct end own, peer;

	fence_ends(pair, &own, &peer);
	snprintf(line, sizeof line, "%08x %08x %s", pair->tag, pair->peer.tag, word);
	relay_say(&own, &peer, line);
}

static void tell_key(const struct pair *pair, const char *what, uint32_t key, uint32_t twin)
{
	char word[64];

	snprintf(word, sizeof word, "%s %u %u", what, key, twin);
	fence_tell(pair, word);
}

/* Keys that peers have asked for, each with the pair whose peer it is. */
static struct asked {
	struct asked *next;
	struct pair *pair;
	uint32_t key;
} *_Atomic asked;
static pthread_cond_t forgotten = PTHREAD_COND_INITIALIZER;

static struct asked *find_asked(const struct pair *pair, uint32_t key)
{
	struct asked *one = asked;

	while (one && (one->pair != pair || one->key != key))
		one = one->next;
	return one;
}

static struct asked *asked_at(const struct nic *nic, uint32_t key)
{
	struct asked *one = asked;

	while (one && (one->pair->nic != nic || one->key != key))
		one = one->next;
	return one;
}

/* The peer of a pair does not know a key any more; with `all`, none. */
static void drop_asked(const struct pair *pair, uint32_t key, int all)
{
	struct asked *kept = NULL, *next;

	for (struct asked *one = asked; one; one = next) {
		next = one->next;
		if (one->pair == pair && (all || one->key == key)) {
			free(one);
		} else {
			one->next = kept;
			kept = one;
		}
	}
	asked = kept;
	pthread_cond_broadcast(&forgotten);
}

void fence_greet(struct pair *pair)
{
	struct end own, peer;

	pair->since_ns = keeper_now_ns();
	pair->tag = standby_draw(pair) | 1;
	pair->packets[TWIN] = standby_draw(pair);
	pair->peer.tag = 0;
	pair->ended = 0;
	pair->peer.knows = pair->peer.awaits = 0;
	pair->move = (struct move){.phase = NO_MOVE};
	pair->standby = (struct standby){0};
	pair->stall = (struct stall){0};
	pair->key_count = 0; /* they were an earlier peer's */
	pair->asked_key_ns = 0;
	pair->moves = 0;
	pair->placed = pair->led = 0;
	pair->hopes = 1;
	pair->greet_ns = pair->greeted_ns = 0;
	fence_ends(pair, &own, &peer);
	relay_have(&own);
	keeper_wake();
}

static void drain(struct queue *queue)
{
	int owned = queue_enter(queue);

	queue_drain(queue);
	queue_leave(queue, owned);
}

/* The peer may be about to leave the old side: it learns what has come here. */
static void say_bye(const struct pair *pair)
{
	char word[64];

	drain(pair->receive_queue);
	snprintf(word, sizeof word, "bye %u %llu %lld", pair->moves, (unsigned long long)pair->receives.used, (long long)fence_next_packet(pair));
	fence_tell(pair, word);
}

void fence_leave(struct pair *pair)
{
	struct end own, peer;

	if (!pair->receives_as)
		return;
	if (pair->state != LOST)
		say_bye(pair);
	fence_ends(pair, &own, &peer);
	relay_leave(&own);
	drop_asked(pair, 0, 1);
	pair->receives_as = pair->sends_as = 0;
	pair->move.phase = NO_MOVE;
}

void fence_lose(struct pair *pair)
{
	if (pair->state == LOST)
		return;
	pair->state = LOST;
	pair->move.phase = NO_MOVE;
	int posting = bias_enter(&pair->posting), receiving = bias_enter(&pair->receiving);
	pair_set(pair->qp[OWN], IBV_QPS_ERR);
	pair_set(pair->qp[TWIN], IBV_QPS_ERR);
	pair_fail(pair);
	bias_leave(&pair->receiving, receiving);
	bias_leave(&pair->posting, posting);
	fence_tell(pair, "lost");
	drop_asked(pair, 0, 1);
	say("a failure of %s stays one: no other NIC can go on", pair->nic->context[OWN]->device->name);
}

void fence_stay(struct pair *pair)
{
	enum state ready = READY, young = YOUNG;

	if (pair->state == MOVING || pair->wanted || pair->holding)
		fence_lose(pair);
	else if (!atomic_compare_exchange_strong(&pair->state, &ready, PLAIN))
		atomic_compare_exchange_strong(&pair->state, &young, PLAIN);
}

/* What this end says that it knows, see `struct peer`. */
static int own_knowledge(const struct pair *pair)
{
	if (pair->state == YOUNG)
		return pair->peer.tag ? HEARD : 0;
	return pair->peer.knows >= CONNECTED ? SURE : CONNECTED;
}

static void greet(struct pair *pair, uint64_t now_ns)
{
	char word[128], gid_text[33];
	union ibv_gid gid;
	const struct ibv_ah_attr *ah = &pair->to_receive.ah_attr;
	int index = nic_twin_gid(pair->nic, ah->port_num, ah->grh.sgid_index, &gid);
	uint64_t waited_ns = now_ns - pair->since_ns;

	pair->peer.awaits = 0;
	pair->greeted_ns = now_ns;
	pair->greet_ns = now_ns + (waited_ns < GREET_FIRST_NS ? GREET_FIRST_NS : waited_ns < GREET_AGAIN_NS ? waited_ns : GREET_AGAIN_NS);
	if (index < 0)
		return;
	for (int i = 0; i < 16; i++)
		snprintf(gid_text + 2 * i, 3, "%02x", gid.raw[i]);
	snprintf(word, sizeof word, "hello %u %s %u %d %d", pair->qp[TWIN]->qp_num, gid_text, pair->packets[TWIN],
		 own_knowledge(pair), balance_may_share(pair));
	fence_tell(pair, word);
}

static uint64_t step_young(struct pair *pair, uint64_t now_ns)
{
	enum state young = YOUNG;

	if (pair->peer.tag) {
		int connected = standby_connect(pair, pair->peer.twin_packet);
		if (connected)
			standby_begin(pair, now_ns);
		else
			say("the twin of a queue pair cannot be connected: it does not survive a failure of its NIC");
		if (atomic_compare_exchange_strong(&pair->state, &young, connected ? READY : PLAIN))
			return now_ns;
	}
	if (!pair->peer.tag && now_ns > pair->since_ns + GREET_FOR_NS) {
		pair->hopes = 0;
		say("the program at %s is not attached with --failover: a failure of a NIC stays one", pair->peer.address);
	}
	if (!pair->wanted)
		return 0;
	if (!pair->hopes || !relay_there() || now_ns > pair->wanted_ns + CONNECT_NS)
		fence_lose(pair);
	return pair->wanted_ns + CONNECT_NS;
}

/* Nobody posts to the old queue pair any more once this is done, and it takes nothing from its peer. */
static void begin(struct pair *pair, uint64_t now_ns, int leads)
{
	enum state ready = READY;

	if (!atomic_compare_exchange_strong(&pair->state, &ready, MOVING))
		return;
	int owned = bias_enter(&pair->posting);
	bias_leave(&pair->posting, owned);
	owned = bias_enter(&pair->receiving);
	pair->receives_wait = 1;
	bias_leave(&pair->receiving, owned);
	if (pair_set(pair->qp[pair->send_side], IBV_QPS_ERR)) {
		fence_lose(pair); /* the old queue pair may still take packets */
		return;
	}
	pair->connected[pair->send_side] = 0;
	pair->move.phase = DRAINING;
	pair->move.began_ns = now_ns;
	pair->move.connected_again = 0;
	pair->move.leads = leads;
}

void fence_leave_side(struct pair *pair, uint64_t now_ns)
{
	if (!standby_may_be_used(pair) || !relay_there())
		return;
	balance_leave(pair);
	begin(pair, now_ns, balance_is_shared(pair));
}

/* Whether all queue pairs with this one's shared receive queue have left the old side, too; -1 where one of them cannot. */
static int is_alone(struct pair *pair)
{
	int all = 1;

	if (pair->pool && (pair->pool->others || pair->pool->stays))
		return -1;
	for (struct pair *one = keeper_all(); one && pair->pool; one = one->next) {
		if (one->pool != pair->pool || one->ended || !one->receives_as || one->state == LOST || one->state == MOVING ||
		    one->send_side != pair->send_side)
			continue;
		if (one->state == PLAIN)
			return -1;
		keeper_want(one);
		all = 0;
	}
	return all;
}

/* Whether the device has given back all receives. */
static int is_drained(struct pair *pair)
{
	const struct receives *receives = &pair->receives;

	drain(pair->receive_queue);
	if (pair->send_queue != pair->receive_queue)
		drain(pair->send_queue);
	return receives->at.done == receives->at.given || receives->flushed == receives->at.given;
}

/* The receives that were not used go to this side, before the peer may send there. Returns 0 where it does not take them. */
static int give_receives(struct pair *pair, int side)
{
	int receiving = bias_enter(&pair->receiving), queue = queue_enter(pair->receive_queue);
	int failed = 0;

	queue_drain(pair->receive_queue);
	pair->receive_epoch++;
	if (pair->receive_side != side)
		pair->receive_queue->away += side == TWIN ? 1 : -1;
	pair->receive_side = side;
	pair->receives.at.given = pair->receives.at.done;
	pair->receives.flushed = 0;
	if (pair->pool && pair->pool->side != side)
		failed = pool_move(pair->pool);
	queue_leave(pair->receive_queue, queue);
	failed = failed ? failed : pair_give_receives(pair);
	pair->receives_wait = 0;
	bias_leave(&pair->receiving, receiving);
	return !failed;
}

int64_t fence_next_packet(const struct pair *pair)
{
	int (*query)(struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *) =
		(int (*)(struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *))bare_verbs("ibv_query_qp");
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attributes = {.rq_psn = 0};

	if (!query || query(pair->qp[pair->send_side], &attributes, IBV_QP_RQ_PSN, &init))
		return -1;
	return attributes.rq_psn % PACKETS;
}

static void say_fence(struct pair *pair, const struct fence_word *said, int answers)
{
	char word[WORD_BYTES];

	snprintf(word, sizeof word, "fence %u %u %llu %lld %u %u %d %d", said->move, said->version, (unsigned long long)said->used,
		 (long long)said->packet, said->new_side.own, said->new_side.peers, answers, said->leads);
	fence_tell(pair, word);
}

static uint64_t step_draining(struct pair *pair, uint64_t now_ns)
{
	struct move *move = &pair->move;
	int side = side_beside(pair->send_side);

	int alone = is_alone(pair);
	if (alone <= 0 || !is_drained(pair)) {
		if (alone < 0 || now_ns > move->began_ns + (alone ? DRAIN_NS : ANSWER_NS))
			fence_lose(pair);
		return now_ns + LOOK_NS;
	}
	if ((!pair->connected[side] && !standby_make_ready(pair)) || !give_receives(pair, side)) {
		fence_lose(pair);
		return 0;
	}
	move->said = (struct fence_word){.move = pair->moves + 1, .used = pair->receives.used, .packet = fence_next_packet(pair),
					 .new_side = pair->beginning, .leads = move->leads};
	say_fence(pair, &move->said, 0);
	move->phase = AWAITING;
	move->sent_ns = now_ns;
	return now_ns;
}

uint64_t fence_reached(const struct pair *pair, int64_t packet)
{
	const struct sends *sends = &pair->sends;
	uint64_t number = sends->at.done;

	for (; number < sends->at.given; number++) {
		uint32_t behind = ((uint32_t)packet - sends_at(sends, number)->packets_end) % PACKETS;
		if (behind >= PACKETS / 2)
			break;
	}
	return number;
}

/* The same by the count of messages that its program was told of. */
static uint64_t reached_by_count(const struct pair *pair)
{
	const struct sends *sends = &pair->sends;
	uint64_t number = sends->at.done;

	while (number < sends->at.given && sends_told_before(sends, number) < pair->move.told.used)
		number++;
	return number;
}

/* Returns 0 where what the peer says cannot be. */
static int find_reached(const struct pair *pair, uint64_t *reached)
{
	const struct fence_word *told = &pair->move.told;

	*reached = fence_reached(pair, told->packet);
	if (told->packet < 0 || sends_told_before(&pair->sends, *reached) != told->used)
		*reached = reached_by_count(pair);
	return sends_told_before(&pair->sends, *reached) == told->used;
}

/* A READ before it was certainly carried out: a request with a fence behind it was. */
static uint64_t fenced_before(const struct sends *sends, uint64_t reached)
{
	for (uint64_t number = reached; number > sends->at.done; number--)
		if (sends_at(sends, number - 1)->wr.send_flags & IBV_SEND_FENCE)
			return number - 1;
	return sends->at.done;
}

static void complete(struct pair *pair, const struct sent_request *request)
{
	struct ibv_wc completion;

	if (!request->signaled)
		return;
	memset(&completion, 0, sizeof completion);
	completion.wr_id = request->wr_id;
	completion.status = IBV_WC_SUCCESS;
	completion.opcode = sent_opcode(request);
	completion.byte_len = (uint32_t)sent_bytes(request);
	completion.qp_num = pair->qp[OWN]->qp_num;
	queue_add(pair->send_queue, &completion);
}

/* What was carried out is complete, up to the first READ whose data may be missing. */
static void complete_reached(struct pair *pair, uint64_t reached)
{
	struct sends *sends = &pair->sends;
	uint64_t fenced = fenced_before(sends, reached), number = sends->at.done;

	for (; number < reached; number++) {
		const struct sent_request *request = sends_at(sends, number);
		if (request->wr.opcode == IBV_WR_RDMA_READ && number >= fenced)
			break;
		complete(pair, request);
	}
	sends->at.done = number;
	pair->mixed_until = sends->at.head;
	for (; number < reached; number++)
		sends_at(sends, number)->executed = sends_at(sends, number)->wr.opcode != IBV_WR_RDMA_READ;
}

/* Both ends have fenced: go on at the new side. */
static void go_on(struct pair *pair)
{
	int posting = bias_enter(&pair->posting), queue = queue_enter(pair->send_queue);
	uint64_t reached;
	int known = find_reached(pair, &reached);

	if (known) {
		complete_reached(pair, reached);
		pair->moves++;
		pair->led |= balance_is_led(pair);
		pair->send_epoch++;
		pair->send_side = side_beside(pair->send_side);
		pair->send_queue->away += pair->send_side == TWIN ? 1 : -1;
		pair->sends.at.given = pair->sends.at.done;
		pair->error = IBV_WC_SUCCESS;
		pair->wanted = 0;
		pair->holding = 0;
		pair->asked_key_ns = 0;
		pair->move.phase = NO_MOVE;
		pair->stall = (struct stall){0};
		pair->state = READY;
		standby_lost(pair);
	}
	queue_leave(pair->send_queue, queue);
	if (known)
		pair_give_sends(pair);
	bias_leave(&pair->posting, posting);
	if (known)
		say("%s has failed, or is left: connections go on at %s", pair->nic->context[side_beside(pair->send_side)]->device->name,
		    pair->nic->context[pair->send_side]->device->name);
	else
		fence_lose(pair);
}

/* The new queue pair expects another packet than the peer will send first. Returns 0 where it cannot be connected. */
static int agree(struct pair *pair)
{
	struct move *move = &pair->move;
	struct beginning beginning = {pair->beginning.own, move->told.new_side.own};

	if (!move->connected_again)
		beginning.own = standby_draw(pair); /* the proof of the twin may have used the earlier one */
	move->connected_again = 1;
	if (!standby_connect_again(pair, beginning) || !give_receives(pair, pair->receive_side))
		return 0;
	move->said.version++;
	move->said.new_side = pair->beginning;
	return 1;
}

static uint64_t step_awaiting(struct pair *pair, uint64_t now_ns)
{
	struct move *move = &pair->move;
	const struct beginning *peers = &move->told.new_side;
	int told = move->told.move == pair->moves + 1, right = !told || peers->own == pair->beginning.peers;

	if (told && right && peers->peers == pair->beginning.own) {
		go_on(pair);
		return now_ns;
	}
	if (now_ns > move->began_ns + ANSWER_NS || (!right && !agree(pair))) {
		fence_lose(pair);
		return 0;
	}
	if (!right || now_ns >= move->sent_ns + AGAIN_NS) {
		say_fence(pair, &move->said, 0);
		move->sent_ns = now_ns;
	}
	return move->sent_ns + AGAIN_NS;
}

/* Whether it may move to a side that is not connected: not twice in a row in vain, unless the peer does. */
static int may_try(struct pair *pair)
{
	uint64_t carried = pair->sends.at.done + pair->receives.used;

	if (pair->move.told.move != pair->moves + 1 && pair->move.unproven_at == carried)
		return 0;
	pair->move.unproven_at = carried;
	return 1;
}

/* The other side may be about to be there. */
static uint64_t step_wanted(struct pair *pair, uint64_t now_ns)
{
	if (!pair->wanted)
		keeper_want(pair);
	if (standby_may_be_used(pair) && relay_there() && (pair->connected[side_beside(pair->send_side)] || may_try(pair))) {
		begin(pair, now_ns, 0);
		return now_ns;
	}
	if (now_ns > pair->wanted_ns + CONNECT_NS) {
		fence_lose(pair);
		return 0;
	}
	uint64_t next_ns = standby_step(pair, now_ns);
	return next_ns && next_ns < pair->wanted_ns + CONNECT_NS ? next_ns : pair->wanted_ns + CONNECT_NS;
}

static uint64_t step_ready(struct pair *pair, uint64_t now_ns)
{
	if (pair->wanted || pair->move.told.move == pair->moves + 1)
		return step_wanted(pair, now_ns);
	if (!pair->holding) {
		uint64_t standby_ns = standby_step(pair, now_ns), stall_ns = stall_step(pair, now_ns);
		return standby_ns && standby_ns < stall_ns ? standby_ns : stall_ns;
	}
	if (!pair->asked_key_ns)
		pair->wanted_ns = now_ns;
	if (now_ns > pair->wanted_ns + ANSWER_NS) {
		fence_lose(pair);
		return 0;
	}
	if (now_ns >= pair->asked_key_ns + AGAIN_NS) {
		tell_key(pair, "key", pair->missing_key, 0);
		pair->asked_key_ns = now_ns;
	}
	return pair->asked_key_ns + AGAIN_NS;
}

static uint64_t step_state(struct pair *pair, uint64_t now_ns)
{
	if (pair->state == YOUNG)
		return step_young(pair, now_ns);
	if (pair->state == READY)
		return step_ready(pair, now_ns);
	if (pair->move.phase == DRAINING)
		return step_draining(pair, now_ns);
	return pair->move.phase == AWAITING ? step_awaiting(pair, now_ns) : 0;
}

uint64_t fence_step(struct pair *pair, uint64_t now_ns)
{
	uint64_t next_ns;

	if (!pair->receives_as || pair->state == LOST)
		return 0;
	if (pair->state == PLAIN) {
		if (pair->error != IBV_WC_SUCCESS)
			fence_lose(pair); /* an error was withheld just before */
		return 0;
	}
	if (pair->hopeless) {
		fence_lose(pair);
		return 0;
	}
	next_ns = step_state(pair, now_ns);
	if (pair->state == PLAIN || pair->state == LOST || !pair->hopes || pair->moves ||
	    (pair->state != YOUNG && pair->peer.knows >= CONNECTED && !pair->peer.awaits))
		return next_ns;
	if (now_ns >= pair->greet_ns)
		greet(pair, now_ns);
	return next_ns && next_ns < pair->greet_ns ? next_ns : pair->greet_ns;
}

int fence_foreign_key(const struct pair *pair, uint32_t key, uint32_t *twin)
{
	for (size_t i = 0; i < pair->key_count; i++)
		if (pair->keys[i].own == key) {
			*twin = pair->keys[i].twin;
			return 1;
		}
	return 0;
}

static void forget_foreign_key(struct pair *pair, uint32_t key)
{
	int owned = bias_enter(&pair->posting);

	for (size_t i = 0; i < pair->key_count; i++)
		if (pair->keys[i].own == key)
			pair->keys[i--] = pair->keys[--pair->key_count];
	bias_leave(&pair->posting, owned);
}

/* An answer that comes late may be about a key that has ended: only one that is waited for counts. */
static void learn_foreign_key(struct pair *pair, uint32_t key, uint32_t twin)
{
	int owned = bias_enter(&pair->posting);

	if (pair->holding && pair->missing_key == key) {
		struct foreign_key *larger = realloc(pair->keys, (pair->key_count + 1) * sizeof *larger);
		if (larger) {
			pair->keys = larger;
			pair->keys[pair->key_count++] = (struct foreign_key){key, twin};
		}
		pair->holding = 0;
		pair->asked_key_ns = 0;
		if (pair->state == READY)
			pair_give_sends(pair);
	}
	bias_leave(&pair->posting, owned);
}

/* Without memory to remember that it was asked for, no key is given away. */
static void answer_key(struct pair *pair, uint32_t key)
{
	struct asked *one = pair->state == LOST ? NULL : find_asked(pair, key);
	uint32_t twin;

	if (!one && pair->state != LOST && (one = malloc(sizeof *one))) {
		*one = (struct asked){asked, pair, key};
		asked = one;
	}
	if (one && memory_remote_key(pair->nic, key, &twin))
		tell_key(pair, "is", key, twin);
	else
		fence_tell(pair, "lost");
}

/* A peer that does not say that it has forgotten the key cannot go on: it might write by it to other memory. */
void fence_forget_key(const struct nic *nic, uint32_t key)
{
	uint64_t until_ns = keeper_now_ns() + FORGET_NS;
	struct asked *one;

	if (!asked)
		return;
	keeper_lock();
	for (one = asked; one; one = one->next)
		if (one->pair->nic == nic && one->key == key)
			tell_key(one->pair, "forget", key, 0);
	while (asked_at(nic, key) && keeper_now_ns() < until_ns)
		keeper_wait(&forgotten, until_ns);
	while ((one = asked_at(nic, key))) {
		struct pair *pair = one->pair;
		fence_lose(pair);
		drop_asked(pair, 0, 1);
	}
	keeper_unlock();
}

static int digits(const char *text, union ibv_gid *gid)
{
	for (int i = 0; i < 16; i++) {
		unsigned int byte;
		if (sscanf(text + 2 * i, "%2x", &byte) != 1)
			return 0;
		gid->raw[i] = (uint8_t)byte;
	}
	return 1;
}

static void hear_hello(struct pair *pair, uint32_t tag, const char *word)
{
	struct peer *peer = &pair->peer, said = *peer;
	char gid[33];
	int knows;

	if (sscanf(word, "hello %u %32s %u %d %d", &said.twin_number, gid, &said.twin_packet, &knows, &said.shares) != 5 ||
	    !digits(gid, &said.twin_gid))
		return;
	if (!peer->tag && pair->state == YOUNG) {
		*peer = said;
		peer->tag = tag;
	}
	if (peer->tag != tag)
		return;
	if (peer->knows < knows)
		peer->knows = knows;
	peer->awaits |= knows < SURE;
	if (peer->awaits && pair->greet_ns > pair->greeted_ns + GREET_FIRST_NS)
		pair->greet_ns = pair->greeted_ns + GREET_FIRST_NS;
}

static void hear_fence(struct pair *pair, const char *word)
{
	struct move *move = &pair->move;
	struct fence_word told;
	unsigned long long used;
	long long packet;
	int answers; /* such a word is not answered: two ends that have both moved would never stop */

	if (sscanf(word, "fence %u %u %llu %lld %u %u %d %d", &told.move, &told.version, &used, &packet, &told.new_side.own,
		   &told.new_side.peers, &answers, &told.leads) != 8)
		return;
	told.used = used;
	told.packet = packet;
	if (pair->state == PLAIN || pair->state == LOST)
		fence_tell(pair, "lost");
	else if (told.move == pair->moves + 1 && (told.move != move->told.move || told.version > move->told.version))
		move->told = told;
	else if (told.move == pair->moves && !answers)
		say_fence(pair, &move->said, 1);
}

/* What has come at a peer that has ended is complete. */
static void hear_bye(struct pair *pair, const char *word)
{
	unsigned long long used;
	long long packet;
	uint32_t moves;

	if (sscanf(word, "bye %u %llu %lld", &moves, &used, &packet) != 3 || (pair->state != MOVING && !pair->wanted))
		return;
	if (moves == pair->moves)
		pair->move.told = (struct fence_word){.used = used, .packet = packet};
	else if (moves != pair->moves + 1 || pair->move.told.move != moves)
		return; /* it speaks of packets of the new side, and has said nothing of the old one */
	drain(pair->send_queue);
	int posting = bias_enter(&pair->posting), queue = queue_enter(pair->send_queue);
	uint64_t reached;
	if (find_reached(pair, &reached))
		complete_reached(pair, reached);
	queue_leave(pair->send_queue, queue);
	bias_leave(&pair->posting, posting);
}

/* The peer cannot go on, or has ended: an error is one. It posts nothing more by keys of this process. */
static void hear_end(struct pair *pair, const char *word)
{
	hear_bye(pair, word);
	pair->ended = 1;
	fence_stay(pair);
	drop_asked(pair, 0, 1);
}

static void hear_of_peer(struct pair *pair, const char *word)
{
	uint32_t key, twin;

	if (!strncmp(word, "fence ", 6))
		hear_fence(pair, word);
	else if (!strncmp(word, "far", 3))
		stall_answer(pair);
	else if (!strncmp(word, "at ", 3))
		stall_hear(pair, word);
	else if (!strncmp(word, "again ", 6))
		standby_hear(pair, word);
	else if (sscanf(word, "key %u", &key) == 1)
		answer_key(pair, key);
	else if (sscanf(word, "is %u %u", &key, &twin) == 2)
		learn_foreign_key(pair, key, twin);
	else if (sscanf(word, "forget %u", &key) == 1)
		forget_foreign_key(pair, key), tell_key(pair, "forgot", key, 0);
	else if (sscanf(word, "forgot %u", &key) == 1)
		drop_asked(pair, key, 0);
	else if (!strncmp(word, "lost", 4) || !strncmp(word, "bye", 3))
		hear_end(pair, word);
}

void fence_hear(struct pair *pair, const char *word)
{
	uint32_t from, to;
	int length = 0;

	if (!strcmp(word, "absent")) {
		if (pair->peer.tag && (pair->state == MOVING || pair->wanted))
			fence_lose(pair);
		return;
	}
	if (sscanf(word, "%8x %8x %n", &from, &to, &length) != 2 || !length)
		return;
	if (!strncmp(word + length, "hello ", 6))
		hear_hello(pair, from, word + length);
	else if (to == pair->tag && from == pair->peer.tag)
		hear_of_peer(pair, word + length);
}
