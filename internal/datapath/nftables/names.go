package nftables

import (
	"fmt"

	"github.com/fairway-net/fairway/internal/service"
)

// Names of kernel objects. Those that ruleset.nft.tmpl declares stand there with what
// they are for.
const (
	tableName    = "fairway"
	markerPrefix = "program-" // + the first digits of the program's hash
	waysMap      = "ways"
	learnMap     = "learn"
	podLinks     = "pod-interfaces"
)

// builtin are the chains whose rules the program loads; a new version flushes them.
var builtin = []string{"refused", "dropped", "services", "services6", "unserved", "prerouting", "output", "learn-prerouting", "learn-output", "forward", "postrouting"}

// A set is a map or set of the program, one for each family: its name is followed
// by 4 or 6.
type set string

const (
	frontends         set = "frontends"
	outside           set = "outside"
	nodeports         set = "nodeports"
	nodeportsOutside  set = "nodeports-outside"
	endpoints         set = "endpoints"
	nodeportEndpoints set = "nodeport-endpoints"
	pods              set = "pods"
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
	howMajor    how = 0xffff << 16
	howReject   how = 0xf000<<16 | 1
	howDrop     how = 0xf000<<16 | 2
)

// maxSlots is how many endpoints a list can have: minor has 16 bits.
const maxSlots = 65535

// outsideOffset is the first slot of the list for clients from outside.
const outsideOffset = 65536

// howTo translates a route. isOutside selects the list for clients from outside.
func howTo(r *service.Route, nodePort, isOutside, isSticky bool) how {
	switch r.Action {
	case service.Reject:
		return howReject
	case service.Drop:
		return howDrop
	}
	h := how(min(len(r.Endpoints), maxSlots))
	switch r.Masquerade {
	case service.MasqueradeFar:
		h |= howFar
	case service.MasqueradeAll:
		h |= howAll
	}
	if nodePort {
		h |= howNodePort
	}
	if isOutside {
		h |= howOutside
	}
	if isSticky {
		h |= howSticky
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
		return &service.Route{Masquerade: service.MasqueradeFar}
	}
	return &service.Route{}
}

// forwards reports whether h picks an endpoint, from how many slots, and from which.
func (h how) forwards() (ok bool, slots, offset uint32) {
	if h == 0 || h == howReject || h == howDrop {
		return false, 0, 0
	}
	if h&howOutside != 0 {
		offset = outsideOffset
	}
	return true, uint32(h &^ howMajor), offset
}

// String returns how as nft prints it: "1:3".
func (h how) String() string { return fmt.Sprintf("%x:%x", uint32(h>>16), uint32(h&0xffff)) }

// chain returns the name of the chain that does it: "nodeport-outside-3-all".
func (h how) chain() string {
	switch h {
	case howReject:
		return "refused"
	case howDrop:
		return "dropped"
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
