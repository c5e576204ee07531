package ipvs

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/service"
)

// tableName is the name of the nft table around IPVS. ruleset.nft.tmpl explains its sets.
const tableName = numbers.TableIPVS

// Ranges of virtual servers, which no host uses. 240.0.0.0/4 is reserved and never routed. The IPv6 range is a unique
// local prefix.
var (
	serverRange4 = netip.MustParsePrefix(numbers.RangeIPVS4)
	serverRange6 = netip.MustParsePrefix(numbers.RangeIPVS6)
)

// serverPortNumber is the port of all virtual servers (tcpmux). No local socket uses it.
const serverPortNumber = 1

// maxServers is the number of virtual servers in each half of serverRange4. The numbers of the upper half have the bit
// fewServer.
const maxServers = 1<<21 - 2

// isVirtualServerAddr reports whether an address belongs to our virtual servers.
func isVirtualServerAddr(a netip.Addr) bool {
	return serverRange4.Contains(a) || serverRange6.Contains(a)
}

// virtualServerAddr returns the nth address for a virtual server, n > 0.
func virtualServerAddr(is4 bool, n uint32) netip.Addr {
	if is4 {
		b := serverRange4.Addr().As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+n)
		return netip.AddrFrom4(b)
	}
	b := serverRange6.Addr().As16()
	binary.BigEndian.PutUint32(b[12:], n)
	return netip.AddrFrom16(b)
}

// serverNumber is the inverse of virtualServerAddr.
func serverNumber(a netip.Addr) uint32 {
	if a.Is4() {
		b, from := a.As4(), serverRange4.Addr().As4()
		return binary.BigEndian.Uint32(b[:]) - binary.BigEndian.Uint32(from[:])
	}
	b := a.As16()
	return binary.BigEndian.Uint32(b[12:])
}

// Sets that only this mode has.
const (
	servers                 nftset.Set = "servers"
	serversExternal         nftset.Set = "servers-external"
	nodeportServers         nftset.Set = "nodeport-servers"
	nodeportServersExternal nftset.Set = "nodeport-servers-external"
)

// setsOf returns the maps from a frontend to its verdict and to its virtual server.
func setsOf(nodePort, external bool) (verdicts, virtual nftset.Set) {
	switch {
	case nodePort && external:
		return nftset.NodeportsExternal, nodeportServersExternal
	case nodePort:
		return nftset.Nodeports, nodeportServers
	case external:
		return nftset.FrontendsExternal, serversExternal
	}
	return nftset.Frontends, servers
}

// verdictServe is the minor of a verdict that leads to a virtual server.
const verdictServe nftset.VerdictID = 1

func verdictFor(r *service.Route, nodePort, external bool) nftset.VerdictID {
	v, forwards := nftset.VerdictFor(r, nodePort, external)
	if forwards {
		v |= verdictServe
	}
	return v
}

// A frontendComment is the comment of a frontend's element: text for people, and properties that the virtual server
// does not have. Example: "default/web:http rr 10800s local".
type frontendComment struct {
	service  api.PortName
	balance  service.Algorithm
	affinity time.Duration
	// local and externalLocal are Route.Local of both routes. They are false without affinity.
	local, externalLocal bool
	loadBalancer         bool
}

func commentOf(f *service.Frontend) frontendComment {
	n := frontendComment{service: f.Service, balance: f.Balance, affinity: time.Duration(persistence(f)) * time.Second, loadBalancer: f.LoadBalancer}
	if n.affinity > 0 {
		n.local, n.externalLocal = f.Internal.Local, f.External.Local
	}
	return n
}

// persistence returns the affinity of f in seconds, the unit of IPVS. 0 means no affinity.
func persistence(f *service.Frontend) uint32 {
	if f.Affinity <= 0 {
		return 0
	}
	return uint32(max(f.Affinity/time.Second, 1))
}

func (n frontendComment) String() string {
	words := []string{n.service.String()}
	if n.balance != service.Random {
		words = append(words, n.balance.String())
	}
	if n.affinity > 0 {
		words = append(words, fmt.Sprintf("%ds", n.affinity/time.Second))
	}
	if n.local {
		words = append(words, "local")
	}
	if n.externalLocal {
		words = append(words, "external-local")
	}
	if n.loadBalancer {
		words = append(words, "load-balancer")
	}
	return strings.Join(words, " ")
}

// parseComment is the inverse of String.
func parseComment(text string) (n frontendComment, err error) {
	words := strings.Split(text, " ")
	if n.service, err = api.ParsePortName(words[0]); err != nil {
		return n, err
	}
	for _, w := range words[1:] {
		switch w {
		case "local":
			n.local = true
			continue
		case "external-local":
			n.externalLocal = true
			continue
		case "load-balancer":
			n.loadBalancer = true
			continue
		}
		if number, ok := strings.CutSuffix(w, "s"); ok {
			if seconds, err := strconv.Atoi(number); err == nil {
				n.affinity = time.Duration(seconds) * time.Second
				continue
			}
		}
		if n.balance, err = service.ParseAlgorithm(w); err != nil {
			return n, fmt.Errorf("comment %q: %w", text, err)
		}
	}
	return n, nil
}

// scheduler returns IPVS' name of an algorithm. Some algorithms have a second scheduler for weights.
func scheduler(a service.Algorithm, weighted bool) string {
	switch a {
	case service.LeastConn:
		if weighted {
			return "wlc"
		}
		return "lc"
	case service.SourceHash:
		return "sh"
	case service.DestHash:
		return "dh"
	case service.ShortestDelay:
		return "sed"
	case service.NeverQueue:
		return "nq"
	case service.Maglev:
		return "mh"
	}
	// IPVS has no random scheduler. Round robin distributes as evenly.
	if weighted {
		return "wrr"
	}
	return "rr"
}
