package service

import (
	"fmt"
	"slices"
	"strings"
)

// An Algorithm spreads new connections over the endpoints of a Frontend. All algorithms respect weights
// (Endpoint.Weight). The zero value is Random.
type Algorithm uint8

// The algorithms. Capabilities.Algorithms says which algorithms a datapath has.
const (
	Random        Algorithm = iota
	RoundRobin              // one after the other
	LeastConn               // the endpoint with the fewest open connections
	SourceHash              // by the client's address
	DestHash                // by the address that the client called
	ShortestDelay           // the endpoint that would have the fewest connections after this one, by weight
	NeverQueue              // an endpoint without connections, else as ShortestDelay
	Maglev                  // by the client's address, stable when endpoints come and go
	algorithmCount
)

// algorithmNames are the names of IPVS, kube-router and kube-proxy, as far as they have one.
var algorithmNames = [algorithmCount]string{"random", "rr", "lc", "sh", "dh", "sed", "nq", "maglev"}

// String returns the name as in the annotation fairway.net/balance: "rr".
func (a Algorithm) String() string {
	if int(a) < len(algorithmNames) {
		return algorithmNames[a]
	}
	return fmt.Sprintf("Algorithm(%d)", uint8(a))
}

// ParseAlgorithm is the inverse of String. It also accepts IPVS' names of weighted algorithms (wrr, wlc) and of Maglev
// hashing (mh).
func ParseAlgorithm(s string) (Algorithm, error) {
	switch s {
	case "wrr":
		return RoundRobin, nil
	case "wlc":
		return LeastConn, nil
	case "mh":
		return Maglev, nil
	}
	if i := slices.Index(algorithmNames[:], s); i >= 0 {
		return Algorithm(i), nil
	}
	return Random, fmt.Errorf("invalid value %q (allowed: %s)", s, strings.Join(algorithmNames[:], ", "))
}

// Algorithms is a set of algorithms. The zero value is empty.
type Algorithms uint16

// AlgorithmsOf returns a set of algorithms.
func AlgorithmsOf(all ...Algorithm) (s Algorithms) {
	for _, a := range all {
		s |= 1 << a
	}
	return s
}

// Has reports whether a is in the set.
func (s Algorithms) Has(a Algorithm) bool { return s&(1<<a) != 0 }
