/* Fake links between threads of one program.
 *
 * `own` of a link_calls is the number of the rank that uses it, plus one. A message takes at
 * least two tests of one of its ends: until then its memory is in use.
 */
#ifndef CORE_LINKS_H
#define CORE_LINKS_H

#include "hosts/links.h"

extern const link_calls fake_calls;

#endif
