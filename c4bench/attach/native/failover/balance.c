/* Load is counted in pairs of this process. A pair belongs to the other NIC where that has less to do for its rate, with the pair,
   than the present one has now; where it would have as much, only if it is the program's own. So each move makes the busier NIC less
   busy, or brings a pair home, and moves come to an end. Only one end counts: the first that has moved the pair by this rule. */
#include "balance.h"

#include "fence.h"
#include "keeper.h"
#include "next.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 64, NAME_BYTES = 64 };
static const uint64_t PATIENCE_NS = 30000000;
static char names[DEVICES][NAME_BYTES];
static uint64_t load[DEVICES], since_ns;
static int is_wanted;

/* In 2.5 Gbit/s, by the bits that stand for a lane's rate and for the number of lanes (InfiniBand specification, volume 1,
   14.2.5.6). */
static uint64_t rate_of(const struct ibv_port_attr *port)
{
	static const uint8_t rates[8] = {1, 2, 4, 4, 6, 10, 20, 40}, lanes[8] = {1, 4, 8, 12, 2, 1, 1, 1};

	return (uint64_t)rates[port->active_speed ? __builtin_ctz(port->active_speed) : 0] *
	       lanes[port->active_width ? __builtin_ctz(port->active_width) : 0];
}

static int number_of(const char *name)
{
	int number = 0;

	while (number < DEVICES - 1 && *names[number] && strcmp(names[number], name))
		number++;
	snprintf(names[number], NAME_BYTES, "%s", name);
	return number;
}

void balance_know(struct nic *nic, int side, const struct ibv_port_attr *port)
{
	is_wanted = getenv("C4BENCH_BALANCE") != NULL;
	nic->device[side] = number_of(nic->context[side]->device->name);
	nic->rate[side] = rate_of(port);
}

/* What would not be as on its own NIC stays there: what waits for events, has atomics, or shares its receives. */
int balance_may_share(const struct pair *pair)
{
	return is_wanted && !pair->pool && !pair->send_queue->cq[OWN]->channel && !pair->receive_queue->cq[OWN]->channel &&
	       !(pair->init.qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC);
}

int balance_is_shared(const struct pair *pair)
{
	return pair->peer.shares && balance_may_share(pair);
}

/* The side that a pair is at, or about to be. */
static int side_of(const struct pair *pair)
{
	return pair->state == MOVING || (pair->state == READY && pair->wanted) ? side_beside(pair->send_side) : pair->send_side;
}

void balance_count(uint64_t now_ns)
{
	uint64_t before[DEVICES];

	memcpy(before, load, sizeof load);
	memset(load, 0, sizeof load);
	for (struct pair *pair = keeper_all(); pair; pair = pair->next)
		if (pair->receives_as && !pair->ended && pair->state != LOST)
			load[pair->nic->device[side_of(pair)]]++;
	if (memcmp(before, load, sizeof load))
		since_ns = now_ns;
}

void balance_leave(const struct pair *pair)
{
	load[pair->nic->device[pair->send_side]]--;
	load[pair->nic->device[side_beside(pair->send_side)]]++;
}

int balance_prefers_other(const struct pair *pair)
{
	const struct nic *nic = pair->nic;
	int here = pair->send_side, there = side_beside(here);

	if (!balance_is_shared(pair))
		return there == OWN;
	if (pair->led || pair->probe != ANSWERED)
		return 0;
	uint64_t now = load[nic->device[here]] * nic->rate[there], then = (load[nic->device[there]] + 1) * nic->rate[here];
	return there == OWN ? then <= now : then < now;
}

/* Where both ends could move a pair, that of the lower address does. */
static int is_lower(const struct pair *pair)
{
	struct end own, peer;

	fence_ends(pair, &own, &peer);
	int order = strcmp(own.address, peer.address);
	return order < 0 || (!order && own.number < peer.number);
}

uint64_t balance_patience_ns(const struct pair *pair)
{
	return is_lower(pair) ? 0 : PATIENCE_NS;
}

int balance_is_led(const struct pair *pair)
{
	return pair->move.told.leads && !(pair->move.said.leads && is_lower(pair));
}

uint64_t balance_since_ns(void)
{
	return since_ns;
}
