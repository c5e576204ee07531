package nftables

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/service/lb"
)

// Session affinity. A Service port with affinity gets affinity IDs. Frontends of the port
// share an ID if they have the same family and the same endpoints: all of the cluster, or
// this node's only. The ID replaces the verdict ID in the packet's priority, with the
// index of the affinity's duration in eight of its bits. Clients are remembered by the hash
// of their address, which chooses one of a limited number of buckets of the ID:
//
//	lb-random-3-affinity:  priority = affinity-ids4[frontend]
//	                       dnat to affinity-buckets4[ID . bucket], else to a random endpoint
//	after dnat:            duration vmap @affinity-updates
//	affinity-update-10800: affinity-buckets4[ID . bucket] = endpoint, for a minute
//	                       affinity-pending[connection] = ID
//	the first answer:      duration of affinity-pending[connection] vmap @affinity-confirms
//	affinity-update-10800-confirmed: affinity-buckets4[ID . bucket] = endpoint, for 3 h
//
// So a Service with affinity costs elements of data only. Each duration in use has two
// chains, and the hooks after dnat exist only while there are such chains.
//
// A bucket's entry lives as long as the affinity lasts and is renewed by every new
// connection that is answered. A client always finds its bucket, however many there are:
// those that share a bucket share an endpoint. So no client can take the place of another,
// and a Service has at most its share of the map. Entries that lead to a removed endpoint
// are deleted after the change, and once more a moment later, for packets that were in
// flight. docs/decisions/0013-affinity-is-bounded.md says why.

// An affinityID is a number in a range that no other packet priority uses: its highest
// four bits are b. The next eight bits hold the duration, which is not part of the ID.
type affinityID uint32

const (
	affinityRange  affinityID = numbers.PriorityAffinity
	affinityNumber affinityID = 0x000fffff
	affinityMask              = 0xf0000000 | affinityNumber // the ID in a packet's priority
	durationMask              = ^affinityNumber             // the duration in it, with the range
	durationShift             = 20
	maxDurations              = 256
)

// affinityFew is the bit of IDs with few buckets.
const affinityFew affinityID = 1 << 19

// Few implements nftset.BucketNumber.
func (i affinityID) Few() bool { return i&affinityFew != 0 }

// unanswered is how long an entry lives until its connection is answered: long enough for
// the slowest answer, and for connections that a client opens at the same time.
const unanswered = time.Minute

// An affinityOwner is what IDs are counted for: a Service and a family.
type affinityOwner struct {
	service string
	is4     bool
}

func (n affinityPortKey) owner() affinityOwner {
	name, _, _ := strings.Cut(n.name, ":")
	return affinityOwner{name, n.is4}
}

// A durationIndex stands for one of the durations in use.
type durationIndex uint8

// priority returns the packet priority that holds the ID and the duration.
func (c durationIndex) priority(i affinityID) affinityID { return i | affinityID(c)<<durationShift }

// An affinityPortKey is what an affinity ID belongs to.
type affinityPortKey struct {
	name  string
	is4   bool
	local bool // the routes have this node's endpoints only
}

// An affinityPort is an affinity ID in use.
type affinityPort struct {
	portKey   affinityPortKey
	frontends []service.Key // frontends that have it
}

// affinityIDOf returns the ID of a Service port. It assigns a new ID if there is none yet.
func (s *state) affinityIDOf(n affinityPortKey) affinityID {
	if i, ok := s.affinityIDs[n]; ok {
		return i
	}
	var few affinityID
	if s.affinityOwners[n.owner()] >= nftset.FullLists {
		few = affinityFew
	}
	// There are more IDs than frontends, so an ID is always free.
	last := &s.lastAffinityID[few/affinityFew]
	number, _ := lb.NextFree(uint32(*last), uint32(affinityFew-1), func(n uint32) bool { return s.affinityPorts[affinityRange|few|affinityID(n)] != nil })
	s.registerAffinityID(n, affinityRange|few|affinityID(number))
	*last = affinityID(number)
	return s.affinityIDs[n]
}

// registerAffinityID records which Service port an ID belongs to.
func (s *state) registerAffinityID(n affinityPortKey, i affinityID) {
	s.affinityIDs[n] = i
	s.affinityPorts[i] = &affinityPort{portKey: n}
	s.affinityOwners[n.owner()]++
	last := &s.lastAffinityID[i&affinityFew/affinityFew]
	*last = max(*last, i&(affinityFew-1))
}

// durationIndexOf returns the index of a duration. It assigns a new index if there is none
// yet. When all maxDurations indexes are in use, a duration shares the next longer one.
func (s *state) durationIndexOf(seconds uint32) durationIndex {
	free, nearest := -1, 0
	for c, at := range s.durations {
		best := s.durations[nearest]
		switch {
		case at == seconds:
			return durationIndex(c)
		case at == 0 && free < 0:
			free = c
		case at >= seconds && (best < seconds || at < best), at < seconds && best < seconds && at > best:
			nearest = c
		}
	}
	if free < 0 {
		return durationIndex(nearest)
	}
	s.durations[free] = seconds
	return durationIndex(free)
}

// comment is the comment of a frontend's affinity ID: the Service port, and how long a
// client stays. A restart reads it back.
func (n affinityPortKey) comment(seconds uint32) string {
	if n.local {
		return fmt.Sprintf("%s %ds local", n.name, seconds)
	}
	return fmt.Sprintf("%s %ds", n.name, seconds)
}

func parseAffinityComment(text string, is4 bool) (n affinityPortKey, seconds uint32, err error) {
	words := strings.Fields(text)
	if len(words) == 3 && words[2] == "local" {
		n.local, words = true, words[:2]
	}
	if len(words) != 2 {
		return n, 0, fmt.Errorf("comment %q has no affinity", text)
	}
	seconds, err = parseSeconds(words[1])
	n.name, n.is4 = words[0], is4
	return n, seconds, err
}

func parseSeconds(text string) (uint32, error) {
	n, err := strconv.ParseUint(strings.TrimSuffix(text, "s"), 10, 32)
	return uint32(n), err
}

// affinityIDSet is the map of the affinity IDs of a kind of frontend.
func affinityIDSet(nodePort, external bool) nftset.Set {
	switch {
	case nodePort && external:
		return affinityIDsNodeportsExternal
	case nodePort:
		return affinityIDsNodeports
	case external:
		return affinityIDsExternal
	}
	return affinityIDs
}

// trackAffinityID records that the frontend k uses i, or no longer uses it.
func (s *state) trackAffinityID(i affinityID, k service.Key, has bool) {
	st := s.affinityPorts[i]
	if st == nil {
		return
	}
	at := slices.Index(st.frontends, k)
	switch {
	case has && at < 0:
		st.frontends = append(st.frontends, k)
	case !has && at >= 0:
		st.frontends = slices.Delete(st.frontends, at, at+1)
	}
}

// addUpdateChains queues the chains of the durations that are in use for the first time.
func (s *state) addUpdateChains(t *nft.Table, c *nftables.Conn) (queued bool, err error) {
	for l, seconds := range s.durations {
		if seconds == 0 || s.updateChains[durationIndex(l)] == seconds {
			continue
		}
		if len(s.updateChains) == 0 {
			addAffinityHooks(t, c)
		}
		if err := addUpdateChain(t, c, durationIndex(l), seconds); err != nil {
			return true, err
		}
		s.updateChains[durationIndex(l)], queued = seconds, true
	}
	return queued, nil
}

// delUpdateChains queues the removal of the chains that no frontend uses any more.
func (s *state) delUpdateChains(t *nft.Table, c *nftables.Conn) (queued bool, err error) {
	var used [maxDurations]bool
	for _, st := range s.affinityPorts {
		for _, k := range st.frontends {
			used[s.at(k).extraOrZero().duration] = true
		}
	}
	for l, seconds := range s.updateChains {
		if used[l] {
			continue
		}
		if err := delUpdateChain(t, c, l, seconds); err != nil {
			return true, err
		}
		delete(s.updateChains, l)
		s.durations[l], queued = 0, true
	}
	if queued && len(s.updateChains) == 0 {
		delAffinityHooks(t, c)
	}
	return queued, nil
}

// releaseAffinityIDs forgets the IDs that no frontend uses any more.
func (s *state) releaseAffinityIDs(gone map[affinityID]bool) {
	for i := range gone {
		if st := s.affinityPorts[i]; st != nil && len(st.frontends) == 0 {
			delete(s.affinityPorts, i)
			if s.affinityOwners[st.portKey.owner()]--; s.affinityOwners[st.portKey.owner()] == 0 {
				delete(s.affinityOwners, st.portKey.owner())
			}
			if s.affinityIDs[st.portKey] == i {
				delete(s.affinityIDs, st.portKey)
			}
		}
	}
}

// pruneAffinity deletes clients' entries that lead to an endpoint which their Service port
// no longer has. It deletes entries of ids only or, if all is set, of every ID, also of IDs
// that are not in use. It runs only at the start and when a port with affinity loses an endpoint: to
// read entries takes long.
func (d *Datapath) pruneAffinity(ctx context.Context, ids map[affinityID]bool, all bool) error {
	if len(ids) == 0 && !all {
		return nil
	}
	valid := map[affinityID]map[netip.AddrPort]bool{}
	for i, st := range d.state.affinityPorts {
		if !all && !ids[i] {
			continue
		}
		valid[i] = map[netip.AddrPort]bool{}
		for _, k := range st.frontends {
			h := d.state.at(k)
			more := h.extraOrZero()
			if more.affinityID == i {
				addEndpoints(valid[i], h.slots)
			}
			if more.affinityIDExternal == i {
				addEndpoints(valid[i], more.externalSlots)
			}
		}
	}
	var lists []affinityID
	if !all {
		lists = slices.Collect(maps.Keys(valid))
	}
	return nftset.Prune(ctx, d.syncer.Table, affinityBuckets.Name, lists, func(ws []nft.Write) error { return d.syncer.Commit(ctx, nil, ws) }, func(e nft.Element, is4 bool) (bool, error) {
		if len(e.Key) < 4 {
			return false, fmt.Errorf("affinity key has %d bytes", len(e.Key))
		}
		i := affinityID(binary.NativeEndian.Uint32(e.Key))
		to, _, err := nftset.ParseAddrPort(e.Data, is4)
		return (all || ids[i]) && !valid[i][to], err
	})
}

// addEndpoints adds the endpoints in slots to a set.
func addEndpoints(set map[netip.AddrPort]bool, slots []slot) {
	for _, s := range slots {
		set[s.addr()] = true
	}
}
