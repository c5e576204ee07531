package iptables

import (
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/service"
)

// readNumbers makes a renderer that uses the numbers which the kernel holds already, so that a
// restart writes nothing and clients stay at their endpoints.
func (d *Datapath) readNumbers(s service.Settings, all map[bool]*familyState, elems map[elem]bool) {
	p := newRenderer(s, liberal())
	d.renderer = p
	ids := map[uint32]uint32{} // mark: list
	for e := range elems {
		if e.set == affinityLists && len(e.key) == 4 && len(e.data) == 4 {
			ids[binary.NativeEndian.Uint32([]byte(e.key))] = binary.NativeEndian.Uint32([]byte(e.data))
		}
	}
	for mark, id := range ids { // the kernel may know clients by them, whatever they belong to
		p.marks.Used(mark & maxMark)
		if p.lists.Used(id &^ fewBit); id&fewBit != 0 {
			p.fewLists.Used(id &^ fewBit)
		}
	}
	for is4, h := range all {
		for c, rules := range h.chains {
			switch {
			case strings.HasPrefix(c.name, sep):
				if mark, ok := markIn(rules, "CONNMARK --set-xmark "); ok {
					p.marks.Adopt(c.name, mark&maxMark) // of two chains with the same the other gets a new one
				}
			case strings.HasPrefix(c.name, svc), strings.HasPrefix(c.name, svl):
				mark, ok := markIn(rules, "-m connmark --mark ")
				if id := ids[markChosen|mark&maxMark]; ok && id != 0 {
					p.adoptList(inFamily(serviceIn(rules), is4), inFamily(c.name, is4), id)
				}
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
		if err == nil && (v&^maxMark == markChosen || v&^maxMark == markKnown) && v&maxMark != 0 {
			return uint32(v), true
		}
	}
	return 0, false
}

// serviceIn finds the Service in the first comment that has an endpoint: "default/web:http -> 10.244.1.2:80".
func serviceIn(rules []string) string {
	for _, text := range rules {
		if name, _, ok := strings.Cut(parse(text).comment, " -> "); ok {
			name, _, _ = strings.Cut(name, ":")
			return name
		}
	}
	return ""
}

// forget releases the numbers that nothing uses any more. A Service that comes back later
// gets other numbers: clients that are known by an old number are not sent to it. It
// returns the numbers of lists that are used, and whether any was released.
func (p *renderer) forget(elems map[elem]int) (lists map[uint32]bool, released bool) {
	marks, lists := map[uint32]bool{}, map[uint32]bool{}
	if p.marks.Len()+p.lists.Len()+p.fewLists.Len() == 0 {
		return lists, false
	}
	for e := range elems {
		if e.set == affinityLists {
			marks[binary.NativeEndian.Uint32([]byte(e.key))&maxMark] = true
			lists[binary.NativeEndian.Uint32([]byte(e.data))] = true
		}
	}
	p.marks.Retain(func(id uint32) bool { return marks[id] })
	return lists, p.retainLists(lists)
}

// updateChains are the chains that elements lead to.
func updateChains[V any](all map[elem]V) map[string]bool {
	names := map[string]bool{}
	for e := range all {
		if e.set == affinityUpdates {
			names[e.to] = true
		}
	}
	return names
}
