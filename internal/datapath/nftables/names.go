package nftables

import (
	"fmt"
	"strings"

	"github.com/fairway-net/fairway/internal/datapath/lb"
	"github.com/fairway-net/fairway/internal/service"
)

// Names of kernel objects. Those that ruleset.nft.tmpl declares stand there with what
// they are for.
const (
	tableName  = "fairway"
	waysMap    = "ways"
	learnerMap = "learners"
	podLinks   = "pod-interfaces"
)

// dynamic reports whether a chain is one that is written over netlink, when it is first
// needed: "pick-3-far", "turn-7", "remember-10800".
func dynamic(chain string) bool {
	for _, prefix := range []string{"pick-", "outside-", "nodeport-outside-", "nodeport-", "turn-"} {
		if rest, ok := strings.CutPrefix(chain, prefix); ok && rest != "" && rest[0] >= '0' && rest[0] <= '9' {
			return true
		}
	}
	return strings.HasPrefix(chain, rememberPrefix)
}

// A set is a map or set of the program, one for each family: its name is followed
// by 4 or 6.
type set string

const (
	services          set = "services"
	inside            set = "inside"
	outside           set = "outside"
	nodeport          set = "nodeport"
	nodeportInside    set = "nodeport-inside"
	nodeportOutside   set = "nodeport-outside"
	endpoints         set = "endpoints"
	nodeportEndpoints set = "nodeport-endpoints"
	pods              set = "pods"
	nodeportHosts     set = "nodeport-hosts"
	nodeportAddresses set = "nodeport-addresses"
	hairpin           set = "hairpin"
	guarded           set = "guarded"
	sources           set = "sources"
	reserved          set = "reserved"
	serviceCIDRs      set = "service-cidrs"
	stickies          set = "sticky"
	stickyOutside     set = "sticky-outside"
	nodeportSticky    set = "nodeport-sticky"
	nodeportStickyOut set = "nodeport-sticky-outside"
	affinity          set = "affinity"
)

// name returns the kernel's name of the set for a family.
func (s set) name(is4 bool) string {
	if is4 {
		return string(s) + "4"
	}
	return string(s) + "6"
}

// A how says what becomes of a packet; it is the data of the frontends' maps and the
// key of the map ways. Its bits are explained in ruleset.nft.tmpl. Zero stands for
// "no element".
type how uint32

const (
	howFar      how = 1 << 16
	howAll      how = 2 << 16
	howOutside  how = 4 << 16
	howNodePort how = 8 << 16
	howSticky   how = 16 << 16
	howRing     how = 0x60 << 16 // these bits are one of:
	howTurns    how = 0x20 << 16
	howSource   how = 0x40 << 16
	howDest     how = 0x60 << 16
	howOnly4    how = 0x100 << 16 // a chain for one family
	howOnly6    how = 0x200 << 16
	howMajor    how = 0xffff << 16
	howOwn      how = 0xe000 << 16 // a chain of one frontend's own; the other 28 bits number it
	howOwnMask  how = 0xf000 << 16
	howReject   how = 0xf000<<16 | 1
	howDrop     how = 0xf000<<16 | 2
	howCloser   how = 0xf000<<16 | 3
)

// maxSlots is how many slots a list can have: minor has 16 bits.
const maxSlots = lb.MaxSlots

// outsideOffset is the first slot of the list for clients from outside.
const outsideOffset = 65536

// howTo translates a route to a frontend that is balanced in a way, with so many slots.
// isOutside selects the list for clients from outside.
func howTo(r *service.Route, balance service.Algorithm, slots int, nodePort, isOutside, isSticky bool) how {
	switch r.Action {
	case service.Reject:
		return howReject
	case service.Drop:
		return howDrop
	}
	h := how(slots)
	switch r.Masquerade {
	case service.MasqueradeOffCluster:
		h |= howFar
	case service.MasqueradeAll:
		h |= howAll
	}
	switch balance {
	case service.RoundRobin:
		h |= howTurns
	case service.SourceHash, service.Maglev:
		h |= howSource
	case service.DestHash:
		h |= howDest
	}
	for _, bit := range [...]struct {
		how how
		set bool
	}{{howNodePort, nodePort}, {howOutside, isOutside}, {howSticky, isSticky}} {
		if bit.set {
			h |= bit.how
		}
	}
	return h
}

// route is the inverse of howTo but for the endpoints.
func (h how) route() *service.Route {
	switch {
	case h == howReject:
		return &service.Route{Action: service.Reject}
	case h == howDrop:
		return &service.Route{Action: service.Drop}
	case h&howAll != 0:
		return &service.Route{Masquerade: service.MasqueradeAll}
	case h&howFar != 0:
		return &service.Route{Masquerade: service.MasqueradeOffCluster}
	}
	return &service.Route{}
}

// own reports whether h is a chain of one frontend's own.
func (h how) own() bool { return h&howOwnMask == howOwn }

// picks reports whether h leads to a chain that picks an endpoint.
func (h how) picks() bool { return h != 0 && h&howOwnMask != howReject&howOwnMask }

// slots returns from how many slots h picks, and from which on.
func (h how) slots() (n, offset uint32) {
	if h&howOutside != 0 {
		offset = outsideOffset
	}
	return uint32(h &^ howMajor), offset
}

// String returns how as nft prints it: "1:3".
func (h how) String() string { return fmt.Sprintf("%x:%x", uint32(h>>16), uint32(h&0xffff)) }

// parseHowText is the inverse of String.
func parseHowText(s string) (how, error) {
	var major, minor uint32
	if _, err := fmt.Sscanf(s, "%x:%x", &major, &minor); err != nil {
		return 0, fmt.Errorf("%q is no how: %w", s, err)
	}
	return how(major<<16 | minor), nil
}

// chain returns the name of the chain that does it: "nodeport-outside-3-all".
func (h how) chain() string {
	switch {
	case h == howReject:
		return "refused"
	case h == howDrop:
		return "dropped"
	case h.own():
		return fmt.Sprintf("turn-%d", h&^howOwnMask)
	}
	name := "pick"
	switch h & (howNodePort | howOutside) {
	case howNodePort:
		name = "nodeport"
	case howOutside:
		name = "outside"
	case howNodePort | howOutside:
		name = "nodeport-outside"
	}
	name = fmt.Sprintf("%s-%d", name, h&^howMajor)
	switch h & howRing {
	case howSource:
		name += "-source"
	case howDest:
		name += "-dest"
	}
	switch {
	case h&howAll != 0:
		name += "-all"
	case h&howFar != 0:
		name += "-far"
	}
	if h&howSticky != 0 {
		name += "-sticky"
	}
	return name
}
