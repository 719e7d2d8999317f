/* Words to the other ends of connections, by way of the agents of both hosts (c4bench/attach/relay.py has the other end). A word
   may come twice, late or never. */
#pragma once

#include "../address.h"

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* One end of a connection: a queue pair by its NIC's address and its number. */
struct end {
	char address[ADDRESS_BYTES];
	uint32_t number;
};

enum { WORD_BYTES = 160 };

/* Which NIC is the twin of which, as the agent knows it: `NAME=NAME,...`. Returns 0 where there is no agent. */
int relay_twins(char *into, size_t size);

/* This process has an end, or has it no more; the agent brings it what is said to it. */
void relay_have(const struct end *own);
void relay_leave(const struct end *own);

/* Say something to the other end. */
void relay_say(const struct end *from, const struct end *to, const char *word);

/* Whether there is an agent that brings words now. */
int relay_there(void);

/* The file to wait at, -1 for none; and what to do once there is something to read. `heard` is called with each word, `refused`
   with each end of this process that the agent does not take. */
int relay_file(void);
void relay_receive(void (*heard)(const struct end *from, const struct end *to, const char *word), void (*refused)(const struct end *own));

/* Look for an agent again. Returns whether there is one that knows nothing of this process's ends. */
int relay_return(uint64_t now_ns);

#pragma GCC visibility pop
