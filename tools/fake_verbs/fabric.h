/* A libibverbs of six NICs that carry requests between queue pairs of one process, and fail as they are asked to. */
#pragma once

#include <infiniband/verbs.h>

enum { NICS = 6 }; /* nic0, nic1 and nic4 of one host, nic2, nic3 and nic5 of the other; each reaches each */

/* How many requests are carried out before the first of them is acknowledged. */
extern unsigned long fabric_lag;

/* Whether queue pairs say which packet they expect. */
extern int fabric_tells_packets;

/* The code of a lane's rate at each NIC's port. */
extern uint8_t fabric_speed[NICS];

/* A NIC fails now: with an event and errors, with errors, or it just carries nothing. It is back. */
enum fabric_failure { WITH_EVENT = 1, WITH_ERRORS, SILENT };
void fabric_fail(int nic, enum fabric_failure how);
void fabric_repair(int nic);

/* How many requests each NIC has carried. */
extern unsigned long fabric_carried[NICS];

/* The first eight bytes of all WRITEs that were carried out, in order. */
struct fabric_log {
	unsigned long count;
	unsigned long long words[1 << 16];
};
extern struct fabric_log fabric_log;
