// SPDX-License-Identifier: GPL-2.0
/*
 * Priority flow control (IEEE 802.1Qbb) of the lab's ports, as switches' chips and NICs have it.
 *
 * A port has a queue for each of eight priorities, which it serves in turn. The priority of a packet follows from its
 * DSCP, by the table of the port that it came in by. Packets that a switch holds count for that port: where those of a
 * lossless priority are more than `xoff` bytes, the port sends pause frames to the other end of its cable, again and
 * again, until they are down to `xon`. What arrives meanwhile has `headroom` bytes; what finds no room is dropped. The
 * other priorities share nothing: each of their queues holds `limit` bytes. A port that receives a pause frame stops
 * that priority for as many quanta, of 512 bit times each, as the frame says. Pause frames are real ones on the cable
 * (Ethernet type 0x8808), and whoever sends one by a raw socket stops the other end's port as well.
 *
 * The watchdog of a port acts where a lossless queue has waited for `detect` while pause frames kept arriving: it drops
 * what the queue holds and what comes to it, or sends it in spite of them, until none has come for `restore`.
 *
 * The qdisc `pfc` has the queues, and belongs below a token bucket, which sets the rate. Everything else is of the
 * port, which lasts as long as its interface, and is read and written in /proc/net/pfc of the interface's namespace.
 * Reading gives three kinds of lines:
 *
 *	PORT settings rate 10000000000 lossless 8 xoff 200000 xon 100000 headroom 100000 limit 400000
 *		detect_us 0 restore_us 0 forward 0		(in one line; `lossless` is a mask of priorities)
 *	PORT dscp 0 0 0 0 0 0 0 0 1 ...				(the priority of each DSCP)
 *	PORT priority 3 rx_pause 7 rx_pause_us 92 tx_pause 0 ...	(one for each priority)
 *
 * A written line is `PORT SETTING NUMBER`, `PORT dscp DSCP PRIORITY`, or `PORT shape PRIORITY RATE`, which limits what the
 * port sends of a priority (bit/s, 0 for no limit). The ports' statistics (`ethtool -S`) have the pause frames and times
 * too, under the names of mlx5.
 */

#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/hashtable.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <net/dsfield.h>
#include <net/net_namespace.h>
#include <net/pfc.h>
#include <net/pkt_sched.h>

#define PRIORITIES	8
#define CONTROL		PRIORITIES		/* the queue of MAC control frames, which nothing pauses */
#define QUEUES		(PRIORITIES + 1)
#define DSCPS		64
#define OPCODE_PFC	0x0101			/* IEEE 802.3 annex 31D */
#define MOST_QUANTA	0xffff
#define QUANTUM_BITS	512
#define LEAST_RATE	1000000ULL		/* bit/s */
#define MOST_RATE	1000000000000ULL
#define OWN_BYTES	(8 << 20)		/* what a NIC's own packets may take: its memory, not the port's */
#define SHAPED_BURST_NS	10000			/* what a shaped priority may send at once after it has sent nothing */
#define STATISTICS	4			/* of each priority, in the ports' statistics */

struct pfc_frame {
	struct ethhdr eth;
	__be16 opcode;
	__be16 enabled;
	__be16 quanta[PRIORITIES];
	u8 padding[ETH_ZLEN - ETH_HLEN - 4 - 2 * PRIORITIES];
} __packed;

/* How often and how long one end has asked the other to stop. */
struct pfc_gate {
	u64 frames;
	u64 stopped_ns;				/* before `since` */
	u64 since, until;
};

struct pfc_class {
	struct pfc_gate rx, tx;
	u64 held;				/* bytes in the switch that came in by this port */
	u64 queued;				/* bytes in this port's queue */
	u64 packets, bytes;			/* sent */
	u64 dropped;				/* packets */
	u64 shape;				/* bit/s, 0 for no limit */
	u64 ready;				/* when a shaped priority may send again */
	u64 waits_since;			/* 0 where the queue is empty or may send */
	u64 last_stop;
	u64 detected, restored;
	bool stopping;				/* the other end has been asked to stop */
	bool storm;
};

struct pfc_port {
	struct hlist_node node;
	struct net_device *dev;
	struct Qdisc *sch;			/* NULL where the interface has no such qdisc */
	struct hrtimer repeat;
	u64 rate, lossless, xoff, xon, headroom, limit, detect_us, restore_us, forward;
	u8 priority[DSCPS];
	struct pfc_class of[PRIORITIES];
};

struct pfc_queues {
	struct qdisc_skb_head queue[QUEUES];
	struct pfc_port *port;
	struct qdisc_watchdog watchdog;
	int last;				/* the priority that was served last */
};

static DEFINE_HASHTABLE(ports, 8);
static DEFINE_SPINLOCK(ports_lock);		/* of the table and of all ports; held with softirqs disabled */

/* ------------------------------------------------------------------------------------------------------- ports */

static unsigned long port_key(const struct net *net, int ifindex)
{
	return (unsigned long)net + ifindex;
}

static struct pfc_port *port_of(const struct net *net, int ifindex)
{
	struct pfc_port *port;

	hash_for_each_possible(ports, port, node, port_key(net, ifindex))
		if (port->dev->ifindex == ifindex && net_eq(dev_net(port->dev), net))
			return port;
	return NULL;
}

static enum hrtimer_restart repeat_stops(struct hrtimer *timer);

static struct pfc_port *new_port(struct net_device *dev)
{
	struct pfc_port *port = kzalloc(sizeof(*port), GFP_ATOMIC);
	int dscp;

	if (!port)
		return NULL;
	port->dev = dev;
	port->rate = 10000000000ULL;
	port->xoff = 200000;
	port->xon = 100000;
	port->headroom = 100000;
	port->limit = 400000;
	for (dscp = 0; dscp < DSCPS; dscp++)
		port->priority[dscp] = dscp >> 3;
	hrtimer_setup(&port->repeat, repeat_stops, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
	hash_add(ports, &port->node, port_key(dev_net(dev), dev->ifindex));
	return port;
}

static struct pfc_port *require_port(struct net_device *dev)
{
	return port_of(dev_net(dev), dev->ifindex) ?: new_port(dev);
}

static bool is_lossless(const struct pfc_port *port, int priority)
{
	return port->lossless & BIT(priority);
}

static u64 quanta_ns(const struct pfc_port *port, u64 quanta)
{
	return div64_u64(quanta * QUANTUM_BITS * NSEC_PER_SEC, port->rate);
}

/* ------------------------------------------------------------------------------------------------ pause frames */

static u64 stopped_us(const struct pfc_gate *gate, u64 now)
{
	return div_u64(gate->stopped_ns + min(now, gate->until) - gate->since, NSEC_PER_USEC);
}

static void gate_set(struct pfc_gate *gate, u64 now, u64 stop_ns)
{
	gate->stopped_ns += min(now, gate->until) - gate->since;
	gate->since = now;
	gate->until = now + stop_ns;
	gate->frames++;
}

static void note_sent(struct pfc_port *port, const struct pfc_frame *frame, u64 now)
{
	int priority;

	for (priority = 0; priority < PRIORITIES; priority++)
		if (ntohs(frame->enabled) & BIT(priority))
			gate_set(&port->of[priority].tx, now, quanta_ns(port, ntohs(frame->quanta[priority])));
}

/* Send a frame for these priorities, ahead of all that is queued. */
static void send_frame(struct pfc_port *port, u32 priorities, u16 quanta)
{
	static const u8 control[ETH_ALEN] = { 0x01, 0x80, 0xc2, 0x00, 0x00, 0x01 };
	struct sk_buff *skb = netdev_alloc_skb(port->dev, sizeof(struct pfc_frame));
	struct pfc_frame *frame;
	int priority;

	if (!skb)
		return;
	frame = skb_put_zero(skb, sizeof(*frame));
	ether_addr_copy(frame->eth.h_dest, control);
	ether_addr_copy(frame->eth.h_source, port->dev->dev_addr);
	frame->eth.h_proto = htons(ETH_P_PAUSE);
	frame->opcode = htons(OPCODE_PFC);
	frame->enabled = htons(priorities);
	for (priority = 0; priority < PRIORITIES; priority++)
		if (priorities & BIT(priority))
			frame->quanta[priority] = htons(quanta);
	skb_reset_mac_header(skb);
	skb_set_network_header(skb, ETH_HLEN);
	skb->protocol = htons(ETH_P_PAUSE);
	note_sent(port, frame, ktime_get_ns());
	dev_direct_xmit(skb, 0);
}

static u32 stopping(const struct pfc_port *port)
{
	u32 priorities = 0;
	int priority;

	for (priority = 0; priority < PRIORITIES; priority++)
		if (port->of[priority].stopping)
			priorities |= BIT(priority);
	return priorities;
}

/* A frame stops the other end for a while only: it is sent again when half of that has passed. */
static enum hrtimer_restart repeat_stops(struct hrtimer *timer)
{
	struct pfc_port *port = container_of(timer, struct pfc_port, repeat);
	u32 priorities;

	spin_lock(&ports_lock);
	priorities = stopping(port);
	if (priorities)
		send_frame(port, priorities, MOST_QUANTA);
	spin_unlock(&ports_lock);
	hrtimer_forward_now(timer, ns_to_ktime(quanta_ns(port, MOST_QUANTA / 2)));
	return priorities ? HRTIMER_RESTART : HRTIMER_NORESTART;
}

/* Ask the other end to stop or to go on, by what the switch holds of it. */
static void review(struct pfc_port *port, int priority)
{
	struct pfc_class *class = &port->of[priority];

	if (!class->stopping && is_lossless(port, priority) && class->held > port->xoff) {
		class->stopping = true;
		send_frame(port, BIT(priority), MOST_QUANTA);
		if (!hrtimer_active(&port->repeat))
			hrtimer_start(&port->repeat, ns_to_ktime(quanta_ns(port, MOST_QUANTA / 2)),
				      HRTIMER_MODE_REL_SOFT);
	} else if (class->stopping && (!is_lossless(port, priority) || class->held <= port->xon)) {
		class->stopping = false;
		send_frame(port, BIT(priority), 0);
	}
}

static bool stopped(const struct pfc_port *port, int priority, u64 now)
{
	const struct pfc_class *class = &port->of[priority];

	return is_lossless(port, priority) && class->rx.until > now && !(class->storm && port->forward);
}

/* Whether the queue is in a storm, by its watchdog. */
static bool storming(struct pfc_port *port, int priority, u64 now)
{
	struct pfc_class *class = &port->of[priority];

	if (class->storm) {
		if (!port->detect_us || now - class->last_stop >= port->restore_us * NSEC_PER_USEC) {
			class->storm = false;
			class->restored++;
		}
	} else if (port->detect_us && class->waits_since &&
		   now - class->waits_since >= port->detect_us * NSEC_PER_USEC) {
		class->storm = true;
		class->detected++;
	}
	return class->storm;
}

static void obey(struct pfc_port *port, const struct pfc_frame *frame, u64 now)
{
	int priority;

	for (priority = 0; priority < PRIORITIES; priority++) {
		struct pfc_class *class = &port->of[priority];
		u64 quanta = ntohs(frame->quanta[priority]);

		if (!(ntohs(frame->enabled) & BIT(priority)))
			continue;
		gate_set(&class->rx, now, is_lossless(port, priority) ? quanta_ns(port, quanta) : 0);
		if (quanta)
			class->last_stop = now;
		if (!quanta || !class->queued)
			class->waits_since = 0;
		else if (!class->waits_since && stopped(port, priority, now))
			class->waits_since = now;
		storming(port, priority, now);
	}
}

static int receive(struct sk_buff *skb, struct net_device *dev, struct packet_type *type, struct net_device *orig_dev)
{
	struct pfc_frame frame;
	struct pfc_port *port;

	if (skb_copy_bits(skb, -ETH_HLEN, &frame, sizeof(frame)) || frame.opcode != htons(OPCODE_PFC))
		goto out;
	spin_lock_bh(&ports_lock);
	port = port_of(dev_net(orig_dev), orig_dev->ifindex);
	if (port) {
		obey(port, &frame, ktime_get_ns());
		if (port->sch)
			__netif_schedule(qdisc_root(port->sch));
	}
	spin_unlock_bh(&ports_lock);
out:
	consume_skb(skb);
	return NET_RX_SUCCESS;
}

static struct packet_type frames_type __read_mostly = {
	.type = htons(ETH_P_PAUSE),
	.func = receive,
};

/* ------------------------------------------------------------------------------------------------------- queues */

static u8 dscp_of(struct sk_buff *skb)
{
	switch (skb->protocol) {
	case htons(ETH_P_IP):
		return pskb_network_may_pull(skb, sizeof(struct iphdr)) ? ipv4_get_dsfield(ip_hdr(skb)) >> 2 : 0;
	case htons(ETH_P_IPV6):
		return pskb_network_may_pull(skb, sizeof(struct ipv6hdr)) ? ipv6_get_dsfield(ipv6_hdr(skb)) >> 2 : 0;
	}
	return 0;
}

/* The port that a packet came in by; NULL for a host's own packets. */
static struct pfc_port *origin(const struct pfc_port *port, const struct sk_buff *skb)
{
	return skb->skb_iif ? port_of(dev_net(port->dev), skb->skb_iif) : NULL;
}

static bool has_room(struct pfc_port *out, struct pfc_port *in, int priority, unsigned int bytes, u64 now)
{
	if (is_lossless(out, priority) && storming(out, priority, now) && !out->forward)
		return false;
	if (!in)
		return out->of[priority].queued + bytes <= OWN_BYTES;
	if (is_lossless(in, priority))
		return in->of[priority].held + bytes <= in->xoff + in->headroom;
	return out->of[priority].queued + bytes <= out->limit;
}

static int pfc_enqueue(struct sk_buff *skb, struct Qdisc *sch, struct sk_buff **to_free)
{
	struct pfc_queues *queues = qdisc_priv(sch);
	struct pfc_port *out = queues->port, *in;
	unsigned int bytes = qdisc_pkt_len(skb);
	u64 now = ktime_get_ns();
	int priority;

	spin_lock(&ports_lock);
	if (skb->protocol == htons(ETH_P_PAUSE)) {
		if (skb_headlen(skb) >= offsetof(struct pfc_frame, padding))
			note_sent(out, (const struct pfc_frame *)skb->data, now);
		priority = CONTROL;
		goto queue;
	}
	in = origin(out, skb);
	priority = (in ?: out)->priority[dscp_of(skb)];
	if (!has_room(out, in, priority, bytes, now)) {
		out->of[priority].dropped++;
		spin_unlock(&ports_lock);
		return qdisc_drop(skb, sch, to_free);
	}
	out->of[priority].queued += bytes;
	if (!out->of[priority].waits_since && stopped(out, priority, now))
		out->of[priority].waits_since = now;
	if (in) {
		in->of[priority].held += bytes;
		review(in, priority);
	}
queue:
	spin_unlock(&ports_lock);
	__qdisc_enqueue_tail(skb, &queues->queue[priority]);
	qdisc_qstats_backlog_inc(sch, skb);
	qdisc_qlen_inc(sch);
	return NET_XMIT_SUCCESS;
}

/* Since when, by its rate, a shaped priority may send the next packet. */
static void charge(struct pfc_class *class, unsigned int bytes, u64 now)
{
	if (class->shape)
		class->ready = max(class->ready, now - SHAPED_BURST_NS) +
			       div64_u64((u64)bytes * BITS_PER_BYTE * NSEC_PER_SEC, class->shape);
}

/* A packet has left its queue: the port that it came in by may let the other end go on. */
static void release(struct pfc_port *out, const struct sk_buff *skb, int priority)
{
	unsigned int bytes = qdisc_pkt_len(skb);
	struct pfc_port *in = origin(out, skb);

	out->of[priority].queued -= min_t(u64, bytes, out->of[priority].queued);
	out->of[priority].waits_since = 0;
	if (in) {
		in->of[priority].held -= min_t(u64, bytes, in->of[priority].held);
		review(in, priority);
	}
}

static struct sk_buff *take(struct Qdisc *sch, int queue)
{
	struct pfc_queues *queues = qdisc_priv(sch);
	struct sk_buff *skb = __qdisc_dequeue_head(&queues->queue[queue]);

	if (skb) {
		qdisc_qstats_backlog_dec(sch, skb);
		WRITE_ONCE(sch->q.qlen, sch->q.qlen - 1);
		if (queue != CONTROL)
			release(queues->port, skb, queue);
	}
	return skb;
}

/* What waits in a storm is dropped. */
static void discard(struct Qdisc *sch, int priority)
{
	struct pfc_queues *queues = qdisc_priv(sch);
	struct sk_buff *skb;

	while ((skb = take(sch, priority))) {
		queues->port->of[priority].dropped++;
		qdisc_tree_reduce_backlog(sch, 1, qdisc_pkt_len(skb));
		kfree_skb(skb);
	}
}

static struct sk_buff *pfc_dequeue(struct Qdisc *sch)
{
	struct pfc_queues *queues = qdisc_priv(sch);
	struct pfc_port *port = queues->port;
	struct sk_buff *skb;
	u64 now, opens = U64_MAX;
	int step;

	if (!sch->q.qlen)
		return NULL;
	now = ktime_get_ns();
	spin_lock(&ports_lock);
	skb = take(sch, CONTROL);
	for (step = 1; !skb && step <= PRIORITIES; step++) {
		int priority = (queues->last + step) % PRIORITIES;

		if (!queues->queue[priority].qlen)
			continue;
		if (is_lossless(port, priority) && storming(port, priority, now) && !port->forward) {
			discard(sch, priority);
		} else if (stopped(port, priority, now)) {
			opens = min(opens, port->of[priority].rx.until);
		} else if (port->of[priority].shape && port->of[priority].ready > now) {
			opens = min(opens, port->of[priority].ready);
		} else {
			skb = take(sch, priority);
			charge(&port->of[priority], qdisc_pkt_len(skb), now);
			port->of[priority].packets++;
			port->of[priority].bytes += qdisc_pkt_len(skb);
			queues->last = priority;
		}
	}
	spin_unlock(&ports_lock);
	if (!skb && opens != U64_MAX)
		qdisc_watchdog_schedule_ns(&queues->watchdog, opens);
	return skb;
}

static void pfc_reset(struct Qdisc *sch)
{
	struct pfc_queues *queues = qdisc_priv(sch);
	struct sk_buff *skb;
	int queue;

	spin_lock_bh(&ports_lock);
	for (queue = 0; queue < QUEUES; queue++)
		while ((skb = take(sch, queue)))
			rtnl_kfree_skbs(skb, skb);
	spin_unlock_bh(&ports_lock);
	qdisc_watchdog_cancel(&queues->watchdog);
}

static int pfc_init(struct Qdisc *sch, struct nlattr *options, struct netlink_ext_ack *extack)
{
	struct pfc_queues *queues = qdisc_priv(sch);

	qdisc_watchdog_init(&queues->watchdog, sch);
	spin_lock_bh(&ports_lock);
	queues->port = require_port(qdisc_dev(sch));
	if (queues->port)
		queues->port->sch = sch;
	spin_unlock_bh(&ports_lock);
	return queues->port ? 0 : -ENOMEM;
}

static void pfc_destroy(struct Qdisc *sch)
{
	struct pfc_queues *queues = qdisc_priv(sch);

	spin_lock_bh(&ports_lock);
	if (queues->port && queues->port->sch == sch)
		queues->port->sch = NULL;
	spin_unlock_bh(&ports_lock);
	qdisc_watchdog_cancel(&queues->watchdog);
}

static struct Qdisc_ops pfc_qdisc_ops __read_mostly = {
	.id		= "pfc",
	.priv_size	= sizeof(struct pfc_queues),
	.enqueue	= pfc_enqueue,
	.dequeue	= pfc_dequeue,
	.peek		= qdisc_peek_dequeued,
	.init		= pfc_init,
	.reset		= pfc_reset,
	.destroy	= pfc_destroy,
	.owner		= THIS_MODULE,
};

/* -------------------------------------------------------------------------------------- settings and statistics */

static void show_port(struct seq_file *file, struct pfc_port *port)
{
	const char *name = port->dev->name;
	u64 now = ktime_get_ns();
	int number;

	seq_printf(file, "%s settings rate %llu lossless %llu xoff %llu xon %llu headroom %llu limit %llu", name, port->rate,
		   port->lossless, port->xoff, port->xon, port->headroom, port->limit);
	seq_printf(file, " detect_us %llu restore_us %llu forward %llu\n%s dscp", port->detect_us, port->restore_us,
		   port->forward, name);
	for (number = 0; number < DSCPS; number++)
		seq_printf(file, " %u", port->priority[number]);
	seq_putc(file, '\n');
	for (number = 0; number < PRIORITIES; number++) {
		struct pfc_class *class = &port->of[number];
		bool storm = storming(port, number, now);

		seq_printf(file, "%s priority %d rx_pause %llu rx_pause_us %llu tx_pause %llu tx_pause_us %llu", name, number,
			   class->rx.frames, stopped_us(&class->rx, now), class->tx.frames, stopped_us(&class->tx, now));
		seq_printf(file, " packets %llu bytes %llu", class->packets, class->bytes);
		seq_printf(file, " held %llu queued %llu dropped %llu storm %d detected %llu restored %llu shape %llu\n",
			   class->held, class->queued, class->dropped, storm, class->detected, class->restored, class->shape);
	}
}

static int show(struct seq_file *file, void *unused)
{
	struct net *net = seq_file_single_net(file);
	struct net_device *dev;
	struct pfc_port *port;

	rcu_read_lock();
	spin_lock_bh(&ports_lock);
	for_each_netdev_rcu(net, dev) {
		port = port_of(net, dev->ifindex);
		if (port)
			show_port(file, port);
	}
	spin_unlock_bh(&ports_lock);
	rcu_read_unlock();
	return 0;
}

struct setting {
	const char *name;
	size_t offset;
	u64 least, most;
};

#define SETTING(field, least, most) { #field, offsetof(struct pfc_port, field), least, most }

static const struct setting settings[] = {
	SETTING(rate, LEAST_RATE, MOST_RATE),
	SETTING(lossless, 0, 0xff),
	SETTING(xoff, 0, U32_MAX),
	SETTING(xon, 0, U32_MAX),
	SETTING(headroom, 0, U32_MAX),
	SETTING(limit, 0, U32_MAX),
	SETTING(detect_us, 0, U32_MAX),
	SETTING(restore_us, 0, U32_MAX),
	SETTING(forward, 0, 1),
};

static int set_number(struct pfc_port *port, const char *name, u64 value)
{
	int i, priority;

	for (i = 0; i < ARRAY_SIZE(settings); i++) {
		if (strcmp(name, settings[i].name))
			continue;
		if (value < settings[i].least || value > settings[i].most)
			return -ERANGE;
		*(u64 *)((char *)port + settings[i].offset) = value;
		for (priority = 0; priority < PRIORITIES; priority++)
			review(port, priority);
		if (port->sch)
			__netif_schedule(qdisc_root(port->sch));
		return 0;
	}
	return -EINVAL;
}

static int set_pair(struct pfc_port *port, const char *name, u64 first, u64 second)
{
	if (!strcmp(name, "dscp") && first < DSCPS && second < PRIORITIES)
		port->priority[first] = second;
	else if (!strcmp(name, "shape") && first < PRIORITIES && (!second || (second >= LEAST_RATE && second <= MOST_RATE)))
		port->of[first].shape = second;
	else
		return -EINVAL;
	return 0;
}

/* A line of words: PORT SETTING NUMBER, or PORT SETTING NUMBER NUMBER. */
static int set(struct net *net, char *line)
{
	char *words[4] = {};
	struct net_device *dev;
	struct pfc_port *port;
	u64 numbers[2] = {};
	int count = 0, error = -ENODEV;

	while (line && count < ARRAY_SIZE(words))
		words[count++] = strsep(&line, " ");
	if (line || count < 3 || kstrtou64(words[2], 10, &numbers[0]) || (count == 4 && kstrtou64(words[3], 10, &numbers[1])))
		return -EINVAL;
	rcu_read_lock();
	spin_lock_bh(&ports_lock);
	dev = dev_get_by_name_rcu(net, words[0]);
	port = dev ? require_port(dev) : NULL;
	if (port)
		error = count == 3 ? set_number(port, words[1], numbers[0]) : set_pair(port, words[1], numbers[0], numbers[1]);
	spin_unlock_bh(&ports_lock);
	rcu_read_unlock();
	return error;
}

static int change(struct file *file, char *text, size_t size)
{
	struct net *net = seq_file_single_net(file->private_data);
	char *line;
	int error;

	while ((line = strsep(&text, "\n"))) {
		error = *line ? set(net, line) : 0;
		if (error)
			return error;
	}
	return 0;
}

int pfc_statistics_count(struct net_device *dev)
{
	int count;

	spin_lock_bh(&ports_lock);
	count = port_of(dev_net(dev), dev->ifindex) ? STATISTICS * PRIORITIES : 0;
	spin_unlock_bh(&ports_lock);
	return count;
}

void pfc_statistics_names(struct net_device *dev, u8 *names)
{
	int priority;

	for (priority = 0; priority < PRIORITIES && pfc_statistics_count(dev); priority++) {
		ethtool_sprintf(&names, "rx_prio%d_pause", priority);
		ethtool_sprintf(&names, "rx_prio%d_pause_duration", priority);
		ethtool_sprintf(&names, "tx_prio%d_pause", priority);
		ethtool_sprintf(&names, "tx_prio%d_pause_duration", priority);
	}
}

void pfc_statistics(struct net_device *dev, u64 *values)
{
	struct pfc_port *port;
	u64 now = ktime_get_ns();
	int priority;

	spin_lock_bh(&ports_lock);
	port = port_of(dev_net(dev), dev->ifindex);
	for (priority = 0; port && priority < PRIORITIES; priority++) {
		const struct pfc_class *class = &port->of[priority];

		*values++ = class->rx.frames;
		*values++ = stopped_us(&class->rx, now);
		*values++ = class->tx.frames;
		*values++ = stopped_us(&class->tx, now);
	}
	spin_unlock_bh(&ports_lock);
}

/* An interface that goes, or moves to another namespace, is no port any more. */
static int forget(struct notifier_block *block, unsigned long event, void *info)
{
	struct net_device *dev = netdev_notifier_info_to_dev(info);
	struct pfc_port *port;

	if (event != NETDEV_UNREGISTER)
		return NOTIFY_DONE;
	spin_lock_bh(&ports_lock);
	port = port_of(dev_net(dev), dev->ifindex);
	if (port)
		hash_del(&port->node);
	spin_unlock_bh(&ports_lock);
	if (port) {
		hrtimer_cancel(&port->repeat);
		kfree(port);
	}
	return NOTIFY_DONE;
}

static struct notifier_block forget_block = { .notifier_call = forget };

static int add_file(struct net *net)
{
	return proc_create_net_single_write("pfc", 0644, net->proc_net, show, change, NULL) ? 0 : -ENOMEM;
}

static void remove_file(struct net *net)
{
	remove_proc_entry("pfc", net->proc_net);
}

static struct pernet_operations namespaces = { .init = add_file, .exit = remove_file };

/*
 * Writing to /sys/module/sch_pfc/parameters/enabled registers all this, once. It is not done at boot, as each call there
 * goes into the kernel's random numbers: those of a lab without flow control stay as they are.
 */
static int enable(const char *value, const struct kernel_param *parameter)
{
	static bool enabled;
	int error;

	if (enabled)
		return 0;
	error = register_pernet_subsys(&namespaces) ?: register_netdevice_notifier(&forget_block) ?:
		register_qdisc(&pfc_qdisc_ops);
	if (error)
		return error;
	dev_add_pack(&frames_type);
	enabled = true;
	return 0;
}

static const struct kernel_param_ops enable_ops = { .set = enable };
module_param_cb(enabled, &enable_ops, NULL, 0200);
