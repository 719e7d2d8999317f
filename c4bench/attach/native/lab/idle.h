/* Sleeping in place of waiting in vain. The verbs library finds these two by name, and does without them outside a lab. */
#pragma once

/* The calling thread has looked for something, and there was nothing: it sleeps, the longer the longer it has waited. */
void c4bench_waited_in_vain(void);

/* The calling thread has found or done something: its wait is over. */
void c4bench_progressed(void);

/* It has read the clock. Reading it again and again is waiting too. */
void c4bench_read_clock(void);
