package iptables

import (
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/service"
)

// learn makes a painter that uses the numbers which the kernel holds already, so that a
// restart writes nothing and clients stay where they are.
func (d *Datapath) learn(s service.Settings, all map[bool]*held, elems map[elem]bool) {
	p := &painter{settings: s, marks: numbers{of: map[string]uint32{}}, lists: numbers{of: map[string]uint32{}}}
	d.painter = p
	ids := map[uint32]uint32{} // mark: list
	for e := range elems {
		if e.set == "ids" && len(e.key) == 4 && len(e.data) == 4 {
			ids[binary.NativeEndian.Uint32([]byte(e.key))] = binary.NativeEndian.Uint32([]byte(e.data))
		}
	}
	taken := map[uint32]bool{}
	for is4, h := range all {
		for c, rules := range h.chains {
			switch {
			case strings.HasPrefix(c.name, sep):
				if mark, ok := markIn(rules, "CONNMARK --set-xmark "); ok && !taken[mark] {
					p.marks.take(c.name, mark&mayBe)
					taken[mark] = true // two chains may not have the same
				}
			case strings.HasPrefix(c.name, svc), strings.HasPrefix(c.name, svl):
				mark, ok := markIn(rules, "-m connmark --mark ")
				if id := ids[chosen|mark&mayBe]; ok && id != 0 {
					p.lists.take(c.name+inFamily("", is4), id)
				}
			}
		}
	}
	unique(&p.lists)
	for _, id := range ids {
		p.lists.last = max(p.lists.last, id)
	}
	for mark := range ids {
		p.marks.last = max(p.marks.last, mark&mayBe)
	}
}

// unique forgets numbers that two names have: another hand was there.
func unique(n *numbers) {
	names := map[uint32][]string{}
	for name, v := range n.of {
		names[v] = append(names[v], name)
	}
	for _, all := range names {
		for _, name := range all {
			if len(all) > 1 {
				delete(n.of, name)
			}
		}
	}
}

// markIn finds the first number behind some words.
func markIn(rules []string, words string) (uint32, bool) {
	for _, text := range rules {
		_, rest, ok := strings.Cut(text, words)
		if !ok {
			continue
		}
		end := strings.IndexAny(rest, "/ ")
		if end < 0 {
			end = len(rest)
		}
		v, err := strconv.ParseUint(rest[:end], 0, 32)
		if err == nil && (v&^mayBe == chosen || v&^mayBe == remembered) && v&mayBe != 0 {
			return uint32(v), true
		}
	}
	return 0, false
}

// forget drops the numbers that nothing uses any more, so that who comes back later is
// somebody else: clients remembered by an old number find nobody.
func (p *painter) forget(elems map[elem]int) {
	if len(p.marks.of)+len(p.lists.of) == 0 {
		return
	}
	marks, lists := map[uint32]bool{}, map[uint32]bool{}
	for e := range elems {
		if e.set == "ids" {
			marks[binary.NativeEndian.Uint32([]byte(e.key))&mayBe] = true
			lists[binary.NativeEndian.Uint32([]byte(e.data))] = true
		}
	}
	for name, v := range p.marks.of {
		if !marks[v] {
			delete(p.marks.of, name)
		}
	}
	for name, v := range p.lists.of {
		if !lists[v] {
			delete(p.lists.of, name)
		}
	}
}
