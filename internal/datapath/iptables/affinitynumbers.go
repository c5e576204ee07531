package iptables

import (
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/datapath/iptables/read"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/service"
)

// maxMark is the largest number of an endpoint's chain, and of a list. The bits above it tell our marks from the marks
// of other programs.
const maxMark = numbers.ConnMarkNumber

// adoptNumbers makes a renderer with the numbers that the kernel holds: marks of endpoints and numbers of lists. So a
// restart writes nothing, and clients stay at their endpoints.
func (d *Datapath) adoptNumbers(s service.Settings, states map[bool]*read.State, elems map[elem]bool) {
	p := newRenderer(s, liberal())
	d.renderer = p
	listOf := map[uint32]uint32{} // the number of a list, by an endpoint's mark
	for e := range elems {
		if e.set == affinityLists && len(e.key) == 4 && len(e.data) == 4 {
			listOf[binary.NativeEndian.Uint32([]byte(e.key))] = binary.NativeEndian.Uint32([]byte(e.data))
		}
	}
	for mark, id := range listOf { // the kernel may know clients by a number that no Service uses
		p.marks.Used(mark & maxMark)
		if p.lists.Used(id &^ fewBit); id&fewBit != 0 {
			p.fewLists.Used(id &^ fewBit)
		}
	}
	for is4, state := range states {
		for c, rules := range state.Chains {
			switch {
			case strings.HasPrefix(c.Name, xtables.KubeSEP):
				if mark, ok := markIn(rules, "CONNMARK --set-xmark "); ok {
					p.marks.Adopt(c.Name, mark&maxMark) // if two chains have one mark, the second gets a new mark
				}
			case strings.HasPrefix(c.Name, xtables.KubeSVC), strings.HasPrefix(c.Name, xtables.KubeSVL):
				mark, ok := markIn(rules, "-m connmark --mark ")
				if id := listOf[markChosen|mark&maxMark]; ok && id != 0 {
					p.adoptList(inFamily(serviceIn(rules), is4), inFamily(c.Name, is4), id)
				}
			}
		}
	}
}

// markIn returns the first mark of ours behind some words.
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

// serviceIn returns the Service in the first comment that names an endpoint. From "default/web:http -> 10.244.1.2:80",
// which builder.choose writes, it returns "default/web".
func serviceIn(rules []string) string {
	for _, text := range rules {
		if name, _, ok := strings.Cut(parse(text).comment, " -> "); ok {
			name, _, _ = strings.Cut(name, ":")
			return name
		}
	}
	return ""
}

// releaseNumbers releases the numbers that no element uses. A Service that comes back later gets other numbers, because
// clients that are known by an old number must not be sent to its endpoints. It returns the numbers of lists in use,
// and whether any number of a list was released.
func (p *renderer) releaseNumbers(elems map[elem]int) (lists map[uint32]bool, released bool) {
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

// updateChains returns the helper's chains to which elements lead.
func updateChains[V any](all map[elem]V) map[string]bool {
	names := map[string]bool{}
	for e := range all {
		if e.set == affinityUpdates {
			names[e.to] = true
		}
	}
	return names
}
