/* Compiled, not linked, inside the kernel's tree: its assembly tells where things are in the kernel's record of a process. */
#include <linux/kbuild.h>
#include <linux/sched.h>

int main(void)
{
	OFFSET(state, task_struct, __state);
	OFFSET(tasks, task_struct, tasks);
	OFFSET(pid, task_struct, pid);
	OFFSET(mm, task_struct, mm);
	OFFSET(comm, task_struct, comm);
	OFFSET(registers, task_struct, thread.regs);
	return 0;
}
