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

// Session affinity: a Service port with affinity gets affinity IDs. Frontends of the port share an ID if they have the
// same family and the same endpoints: all endpoints of the cluster, or those of this node only. In the packet's
// priority the affinity ID replaces the verdict ID. Eight of its bits are the index of the affinity's duration. The
// hash of a client's address selects one of a limited number of buckets of the ID:
//
//	lb-random-3-affinity:  priority = affinity-ids4[frontend]
//	                       dnat to affinity-buckets4[ID . bucket], else to a random endpoint
//	after dnat:            duration vmap @affinity-updates
//	affinity-update-10800: affinity-buckets4[ID . bucket] = endpoint, for a minute
//	                       affinity-pending[connection] = ID
//	the first answer:      duration of affinity-pending[connection] vmap @affinity-confirms
//	affinity-update-10800-confirmed: affinity-buckets4[ID . bucket] = endpoint, for 3 h
//
// So a Service with affinity costs elements only. Each duration in use has two chains. The hooks after dnat exist only
// while a duration is in use.
//
// The entry of a bucket lives for the duration of the affinity. Every new connection renews it when its first answer
// comes. All clients of a bucket share its endpoint. So a client always has a bucket, no client evicts another one, and
// each Service uses only its share of the map.
//
// Entries that lead to a removed endpoint are deleted after the change. Packets in flight may add such entries again,
// so the next Check deletes them once more. docs/decisions/0013-affinity-is-bounded.md has the reasons.

// An affinityID is a number in a range that no other packet priority uses: its highest four bits are b (hexadecimal).
// In a packet's priority the next eight bits hold the duration, which is not part of the ID.
type affinityID uint32

const (
	affinityRange  affinityID = numbers.PriorityAffinity
	affinityNumber affinityID = 0x000fffff
	affinityMask              = 0xf0000000 | affinityNumber // the bits of the ID in a packet's priority
	durationMask              = ^affinityNumber             // the bits of the range and of the duration
	durationShift             = 20
	maxDurations              = 256
)

// affinityFew is the bit of IDs with few buckets.
const affinityFew affinityID = 1 << 19

// Few implements nftset.BucketNumber.
func (i affinityID) Few() bool { return i&affinityFew != 0 }

// unanswered is the lifetime of an entry before the connection's first answer. It is long enough for the slowest
// answer, and for connections that a client opens at the same time.
const unanswered = time.Minute

// An affinityOwner is a Service and a family. Its number of IDs decides which IDs have few buckets.
type affinityOwner struct {
	service string
	is4     bool
}

func (n affinityPortKey) owner() affinityOwner {
	name, _, _ := strings.Cut(n.name, ":")
	return affinityOwner{name, n.is4}
}

// A durationIndex is the index of a duration in state.durations.
type durationIndex uint8

// priority returns the packet priority that holds the ID and the duration.
func (d durationIndex) priority(i affinityID) affinityID { return i | affinityID(d)<<durationShift }

// An affinityPortKey identifies the owner of an affinity ID: a Service port, its family, and which endpoints.
type affinityPortKey struct {
	name  string // of the Service port
	is4   bool
	local bool // only endpoints of this node
}

// An affinityPort describes an affinity ID in use.
type affinityPort struct {
	portKey   affinityPortKey
	frontends []service.Key // the frontends with the ID
}

// affinityIDOf returns the ID of a Service port. If the port has no ID, it gets one.
func (s *state) affinityIDOf(n affinityPortKey) affinityID {
	if i, ok := s.affinityIDs[n]; ok {
		return i
	}
	var few affinityID
	if s.affinityOwners[n.owner()] >= nftset.FullLists {
		few = affinityFew
	}
	// There are more IDs than frontends, so NextFree always finds one.
	last := &s.lastAffinityID[few/affinityFew]
	number, _ := lb.NextFree(uint32(*last), uint32(affinityFew-1), func(n uint32) bool {
		return s.affinityPorts[affinityRange|few|affinityID(n)] != nil
	})
	s.registerAffinityID(n, affinityRange|few|affinityID(number))
	*last = affinityID(number)
	return s.affinityIDs[n]
}

// registerAffinityID records the owner of an ID.
func (s *state) registerAffinityID(n affinityPortKey, i affinityID) {
	s.affinityIDs[n] = i
	s.affinityPorts[i] = &affinityPort{portKey: n}
	s.affinityOwners[n.owner()]++
	last := &s.lastAffinityID[i&affinityFew/affinityFew]
	*last = max(*last, i&(affinityFew-1))
}

// durationIndexOf returns the index of a duration. A new duration gets a free index. If no index is free, it shares the
// next longer duration, or the longest if there is no longer one.
func (s *state) durationIndexOf(seconds uint32) durationIndex {
	free, nearest := -1, 0
	for i, at := range s.durations {
		best := s.durations[nearest]
		switch {
		case at == seconds:
			return durationIndex(i)
		case at == 0 && free < 0:
			free = i
		case at >= seconds && (best < seconds || at < best), at < seconds && best < seconds && at > best:
			nearest = i
		}
	}
	if free < 0 {
		return durationIndex(nearest)
	}
	s.durations[free] = seconds
	return durationIndex(free)
}

// comment returns the comment of a frontend's affinity ID: the Service port and the duration. A restart reads the
// comment.
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

// affinityIDSet returns the map of the affinity IDs of a kind of frontend.
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

// trackAffinityID records whether the frontend k uses the ID i.
func (s *state) trackAffinityID(i affinityID, k service.Key, uses bool) {
	port := s.affinityPorts[i]
	if port == nil {
		return
	}
	at := slices.Index(port.frontends, k)
	switch {
	case uses && at < 0:
		port.frontends = append(port.frontends, k)
	case !uses && at >= 0:
		port.frontends = slices.Delete(port.frontends, at, at+1)
	}
}

// addUpdateChains queues the chains of durations that are in use and have no chains.
func (s *state) addUpdateChains(t *nft.Table, c *nftables.Conn) (queued bool, err error) {
	for i, seconds := range s.durations {
		if seconds == 0 || s.updateChains[durationIndex(i)] == seconds {
			continue
		}
		if len(s.updateChains) == 0 {
			addAffinityHooks(t, c)
		}
		if err := addUpdateChain(t, c, durationIndex(i), seconds); err != nil {
			return true, err
		}
		s.updateChains[durationIndex(i)], queued = seconds, true
	}
	return queued, nil
}

// delUpdateChains queues the removal of chains of unused durations.
func (s *state) delUpdateChains(t *nft.Table, c *nftables.Conn) (queued bool, err error) {
	var used [maxDurations]bool
	for _, port := range s.affinityPorts {
		for _, k := range port.frontends {
			used[s.at(k).extraOrZero().duration] = true
		}
	}
	for i, seconds := range s.updateChains {
		if used[i] {
			continue
		}
		if err := delUpdateChain(t, c, i, seconds); err != nil {
			return true, err
		}
		delete(s.updateChains, i)
		s.durations[i], queued = 0, true
	}
	if queued && len(s.updateChains) == 0 {
		delAffinityHooks(t, c)
	}
	return queued, nil
}

// releaseAffinityIDs makes those of ids free that no frontend uses.
func (s *state) releaseAffinityIDs(ids map[affinityID]bool) {
	for i := range ids {
		if port := s.affinityPorts[i]; port != nil && len(port.frontends) == 0 {
			delete(s.affinityPorts, i)
			if s.affinityOwners[port.portKey.owner()]--; s.affinityOwners[port.portKey.owner()] == 0 {
				delete(s.affinityOwners, port.portKey.owner())
			}
			if s.affinityIDs[port.portKey] == i {
				delete(s.affinityIDs, port.portKey)
			}
		}
	}
}

// pruneAffinity deletes entries of clients that lead to endpoints which their Service port has lost. It deletes entries
// of ids only. If all is set, it deletes entries of every ID, also of unused IDs. It runs only at the start and when a
// port with affinity loses an endpoint, because it takes long to read the entries.
func (d *Datapath) pruneAffinity(ctx context.Context, ids map[affinityID]bool, all bool) error {
	if len(ids) == 0 && !all {
		return nil
	}
	valid := map[affinityID]map[netip.AddrPort]bool{}
	for i, port := range d.state.affinityPorts {
		if !all && !ids[i] {
			continue
		}
		valid[i] = map[netip.AddrPort]bool{}
		for _, k := range port.frontends {
			f := d.state.at(k)
			extra := f.extraOrZero()
			if extra.affinityID == i {
				addEndpoints(valid[i], f.slots)
			}
			if extra.affinityIDExternal == i {
				addEndpoints(valid[i], extra.externalSlots)
			}
		}
	}
	var lists []affinityID
	if !all {
		lists = slices.Collect(maps.Keys(valid))
	}
	commit := func(ws []nft.Write) error { return d.syncer.Commit(ctx, nil, ws) }
	return nftset.Prune(ctx, d.syncer.Table, affinityBuckets.Name, lists, commit, func(e nft.Element, is4 bool) (bool, error) {
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
