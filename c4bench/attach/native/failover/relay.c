/* Each message is a line of JSON. This connection is apart from the one by which the agent follows the process (../agent.c):
   programs that are not followed can go on at another NIC all the same. */
#define _GNU_SOURCE
#include "relay.h"

#include "../say.h"
#include "keeper.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { LINE_BYTES = 4096, INCOMING_BYTES = 64 << 10, LOOK_MS = 20, NONE = -1 };
static const uint64_t ABSENT_NS = 100000000u, ANSWER_NS = 500000000u;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int connection = NONE;
static atomic_int introduced; /* the agent has answered */
static int is_new;            /* it knows nothing of this process's ends */
static uint64_t asked_ns;
static char incoming[INCOMING_BYTES];
static size_t length;
static char twins[LINE_BYTES];
static uint64_t not_before_ns;

static const char *path(void)
{
	const char *given = getenv("C4BENCH_ATTACH_SOCKET");

	return given ? given : "/run/c4bench/attach.sock";
}

static void hang_up(void)
{
	if (connection != NONE)
		close(connection);
	connection = NONE;
	introduced = 0;
	length = 0;
	not_before_ns = keeper_now_ns() + ABSENT_NS;
}

/* The caller has the lock. */
static void send_line(const char *line)
{
	size_t bytes = strlen(line);

	if (connection != NONE && send(connection, line, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)bytes)
		hang_up();
}

/* The text of a name in a line that the agent has written. Returns 0 where it has none. */
static int text_in(const char *line, const char *name, char *into, size_t size)
{
	const char *at = strstr(line, name), *end;

	if (!at)
		return 0;
	at += strlen(name);
	end = strchr(at, '"');
	if (!end || (size_t)(end - at) >= size)
		return 0;
	memcpy(into, at, (size_t)(end - at));
	into[end - at] = 0;
	return 1;
}

static int number_in(const char *line, const char *name, uint32_t *into)
{
	const char *at = strstr(line, name);
	char *end;

	if (!at)
		return 0;
	at += strlen(name);
	*into = (uint32_t)strtoul(at, &end, 10);
	return end != at;
}

/* Take the next whole line, if there is one. The caller has the lock. */
static int take_line(char line[LINE_BYTES])
{
	const char *end = memchr(incoming, '\n', length);
	size_t bytes = end ? (size_t)(end - incoming) : 0;

	if (!end)
		return 0;
	memcpy(line, incoming, bytes < LINE_BYTES ? bytes : 0);
	line[bytes < LINE_BYTES ? bytes : 0] = 0;
	length -= bytes + 1;
	memmove(incoming, end + 1, length);
	return 1;
}

/* The caller has the lock. */
static void read_more(void)
{
	ssize_t got = connection == NONE ? 0 : recv(connection, incoming + length, INCOMING_BYTES - length, MSG_DONTWAIT);

	if (got > 0)
		length += (size_t)got;
	else if (connection != NONE && (got == 0 || (errno != EAGAIN && errno != EINTR)))
		hang_up();
}

/* The agent does not answer as one does. The caller has the lock. */
static void give_up(const char *said)
{
	say("the agent at %s does not bring words to peers: a failure of a NIC stays one (%s)", path(), said);
	hang_up();
}

/* The agent's first line. The caller has the lock. */
static void take_answer(const char *line)
{
	if (!text_in(line, "\"twins\":\"", twins, sizeof twins)) {
		give_up(line);
		return;
	}
	introduced = is_new = 1;
}

/* Connect to the agent, and ask. The caller has the lock. */
static void reach(uint64_t now_ns)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int bytes = snprintf(address.sun_path, sizeof address.sun_path, "%s", path());

	connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (connection == NONE)
		return;
	if (bytes >= (int)sizeof address.sun_path || connect(connection, (struct sockaddr *)&address, sizeof address)) {
		say("no agent at %s: %s; a failure of a NIC stays one until there is", path(), strerror(errno));
		hang_up();
		return;
	}
	asked_ns = now_ns;
	send_line("{\"failover\":1}\n");
}

/* Whether the agent may answer still. The caller has the lock. */
static int look_for_answer(uint64_t now_ns)
{
	char line[LINE_BYTES];

	if (connection == NONE || introduced)
		return 0;
	read_more();
	if (take_line(line))
		take_answer(line);
	else if (connection != NONE && now_ns > asked_ns + ANSWER_NS)
		give_up("no answer");
	return connection != NONE && !introduced;
}

int relay_twins(char *into, size_t size)
{
	pthread_mutex_lock(&lock);
	if (connection == NONE)
		reach(keeper_now_ns());
	while (look_for_answer(keeper_now_ns())) {
		struct pollfd wait = {.fd = connection, .events = POLLIN};
		pthread_mutex_unlock(&lock);
		poll(&wait, 1, LOOK_MS);
		pthread_mutex_lock(&lock);
	}
	int there = introduced;
	if (there)
		snprintf(into, size, "%s", twins);
	pthread_mutex_unlock(&lock);
	return there;
}

static void say_line(const char *line)
{
	pthread_mutex_lock(&lock);
	send_line(line);
	pthread_mutex_unlock(&lock);
}

void relay_have(const struct end *own)
{
	char line[LINE_BYTES];

	snprintf(line, sizeof line, "{\"have\":\"%s\",\"qp\":%u}\n", own->address, own->number);
	say_line(line);
}

void relay_leave(const struct end *own)
{
	char line[LINE_BYTES];

	snprintf(line, sizeof line, "{\"leave\":\"%s\",\"qp\":%u}\n", own->address, own->number);
	say_line(line);
}

void relay_say(const struct end *from, const struct end *to, const char *word)
{
	char line[LINE_BYTES];

	snprintf(line, sizeof line, "{\"source\":\"%s\",\"qp\":%u,\"destination\":\"%s\",\"remote_qp\":%u,\"word\":\"%s\"}\n",
		 from->address, from->number, to->address, to->number, word);
	say_line(line);
}

int relay_there(void)
{
	return introduced;
}

int relay_file(void)
{
	return connection;
}

static int parse(const char *line, struct end *from, struct end *to, char word[WORD_BYTES])
{
	return text_in(line, "\"source\":\"", from->address, sizeof from->address) && number_in(line, "\"qp\":", &from->number) &&
	       text_in(line, "\"destination\":\"", to->address, sizeof to->address) &&
	       number_in(line, "\"remote_qp\":", &to->number) && text_in(line, "\"word\":\"", word, WORD_BYTES);
}

/* The next line of an agent that has answered. */
static int next_line(char line[LINE_BYTES])
{
	pthread_mutex_lock(&lock);
	int found = introduced && take_line(line);
	pthread_mutex_unlock(&lock);
	return found;
}

void relay_receive(void (*heard)(const struct end *from, const struct end *to, const char *word), void (*refused)(const struct end *own))
{
	char line[LINE_BYTES], word[WORD_BYTES], why[256];
	struct end from, to;

	pthread_mutex_lock(&lock);
	if (introduced)
		read_more();
	pthread_mutex_unlock(&lock);
	while (next_line(line)) {
		int is_error = text_in(line, "\"error\":\"", why, sizeof why);
		if (parse(line, &from, &to, word)) {
			heard(&from, &to, word);
		} else if (is_error && text_in(line, "\"refused\":\"", to.address, sizeof to.address) &&
			   number_in(line, "\"qp\":", &to.number)) {
			say("the agent at %s brings no words for a queue pair: %s; a failure of its NIC stays one", path(), why);
			refused(&to);
		} else if (is_error) {
			say("the agent at %s brings no more words to peers: %s", path(), why);
		}
	}
}

int relay_return(uint64_t now_ns)
{
	pthread_mutex_lock(&lock);
	if (connection == NONE && now_ns >= not_before_ns)
		reach(now_ns);
	look_for_answer(now_ns);
	int knows_nothing = is_new;
	is_new = 0;
	pthread_mutex_unlock(&lock);
	return knows_nothing;
}
