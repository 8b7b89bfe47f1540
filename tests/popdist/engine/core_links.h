/* A fake of what the core calls of MPI, between threads of one program.
 *
 * The handle of a communicator is the number of the rank that uses it, plus one. A message
 * takes at least two tests of one of its ends: until then its memory is in use.
 */
#ifndef CORE_LINKS_H
#define CORE_LINKS_H

int fake_isend(const void *data, int bytes, void *type, int to, int tag, void *group,
               void *request);
int fake_irecv(void *data, int bytes, void *type, int from, int tag, void *group,
               void *request);
int fake_test(void *request, int *done, void *status);

#endif
