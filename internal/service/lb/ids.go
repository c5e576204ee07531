package lb

// IDs gives names numbers from 1 on. The kernel holds the numbers, and a restart reads them back.
//
// A released number is used again as late as possible: the kernel may still hold entries with that number (a client's
// entry, a packet on its way), which must not lead to another name. NewIDs makes an IDs.
type IDs[K comparable] struct {
	of    map[K]uint32
	names map[uint32]K
	last  uint32 // the search for a free number starts after it
	limit uint32
}

// NewIDs returns an IDs with the free numbers 1 to limit.
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

// Get returns the number of a name. A new name gets the next free number. ok is false if all numbers are taken.
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

// Adopt notes a number that the kernel holds for a name. It returns false, and notes nothing, if the number is out of
// range, or if the name or the number already has another partner.
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

// Used notes that a number was in use for any name. Lower numbers are used again only after all higher numbers.
func (s *IDs[K]) Used(id uint32) {
	if id <= s.limit {
		s.last = max(s.last, id)
	}
}

// Release releases the number of a name, if the name has a number.
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

// NextFree returns the first number after last that is not taken, in a circle from 1 to limit. It returns false if all
// are taken.
func NextFree(last, limit uint32, taken func(uint32) bool) (id uint32, ok bool) {
	id = last
	for range limit {
		if id++; id > limit {
			id = 1
		}
		if !taken(id) {
			return id, true
		}
	}
	return 0, false
}
