/* Asking the agent of this host, over its UNIX socket, which path a new connection takes. */
#pragma once

#include <infiniband/verbs.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

enum { NO_ANSWER = -1 };

/* What the agent wants of a connection; NO_ANSWER where the program's own choice stands. */
struct advice {
	unsigned int agent; /* which of the agents that this process has met, from 1 on; 0 for none */
	int64_t label;      /* GRH flow label */
	int64_t timeout; /* verbs' numbers */
	int64_t retries;
};

/* A connection to be: from queue pair `number` of a device of this process to another NIC's `remote_number`. */
struct connection {
	unsigned int device;
	uint32_t number, remote_number;
	union ibv_gid local, remote;
};

/* Ask about a connection. Takes half a second at most, and no time where there is no agent. */
struct advice agent_advise(const struct connection *about);

/* Have an agent that has come later know this process, and the paths that an agent before it has planned; read which queue
   pairs it wants elsewhere (move.h). Does that ten times a second, and little else. */
void agent_keep(uint64_t now);

/* A queue pair has moved to this label, or was `refused` and has it still; with label 0 it is gone. */
void agent_moved(unsigned int device, uint32_t number, uint32_t label, int refused);

#pragma GCC visibility pop
