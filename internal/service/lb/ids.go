package lb

// IDs gives names numbers from 1 on, which the kernel holds and a restart reads back.
//
// A number that was released is given again as late as possible, not at once: the kernel
// may still hold entries with it (a client's entry, a packet on its way), and they must
// not lead to another name. Make one with NewIDs.
type IDs[K comparable] struct {
	of    map[K]uint32
	names map[uint32]K
	last  uint32 // the number after which the next free one is looked for
	limit uint32
}

// NewIDs returns numbers from 1 to most, all of them free.
func NewIDs[K comparable](limit uint32) *IDs[K] {
	return &IDs[K]{of: map[K]uint32{}, names: map[uint32]K{}, limit: limit}
}

// Len returns how many names have a number.
func (s *IDs[K]) Len() int { return len(s.of) }

// Lookup returns the number of a name, and whether it has one.
func (s *IDs[K]) Lookup(name K) (id uint32, ok bool) {
	id, ok = s.of[name]
	return id, ok
}

// Get returns the number of a name, the next free one if it has none yet. It is false if
// all numbers are taken.
func (s *IDs[K]) Get(name K) (id uint32, ok bool) {
	if id, ok := s.of[name]; ok {
		return id, true
	}
	id, ok = NextFree(s.last, s.limit, func(id uint32) bool { _, taken := s.names[id]; return taken })
	if ok {
		s.of[name], s.names[id], s.last = id, name, id
	}
	return id, ok
}

// Adopt notes a number that the kernel holds for a name. It is false, and nothing is noted,
// if the number is out of range, or if the name or the number has another partner already.
func (s *IDs[K]) Adopt(name K, id uint32) bool {
	if id == 0 || id > s.limit {
		return false
	}
	s.Used(id)
	owner, taken := s.names[id]
	if was, named := s.of[name]; taken || named {
		return taken && named && owner == name && was == id
	}
	s.of[name], s.names[id] = id, name
	return true
}

// Used notes that a number was in use, whatever its name was: lower ones are given again
// only after all higher ones.
func (s *IDs[K]) Used(id uint32) {
	if id <= s.limit {
		s.last = max(s.last, id)
	}
}

// Release takes a name's number back. It is not an error if it has none.
func (s *IDs[K]) Release(name K) {
	if id, ok := s.of[name]; ok {
		delete(s.of, name)
		delete(s.names, id)
	}
}

// Retain releases the numbers for which keep is false.
func (s *IDs[K]) Retain(keep func(id uint32) bool) {
	for name, id := range s.of {
		if !keep(id) {
			s.Release(name)
		}
	}
}

// NextFree returns the first number after last, in a circle from 1 to most, that is not
// taken. It is false if all are.
func NextFree(last, most uint32, taken func(uint32) bool) (id uint32, ok bool) {
	id = last
	for range most {
		if id++; id > most {
			id = 1
		}
		if !taken(id) {
			return id, true
		}
	}
	return 0, false
}
