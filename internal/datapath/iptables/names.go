package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"github.com/fairway-net/fairway/internal/numbers"
	"github.com/fairway-net/fairway/internal/service"
)

// A chain is one chain of one table of a family.
type chain struct{ table, name string }

// Tables.
const nat, filter = "nat", "filter"

// Chains that are always there. All but the last two are kube-proxy's.
const (
	services   = "KUBE-SERVICES"
	nodeports  = "KUBE-NODEPORTS"
	postroute  = "KUBE-POSTROUTING"
	markMasq   = "KUBE-MARK-MASQ"
	externals  = "KUBE-EXTERNAL-SERVICES"
	forward    = "KUBE-FORWARD"
	firewall   = "KUBE-PROXY-FIREWALL"
	markFar    = "KUBE-MARK-FAR" // marks all that are no pods
	recordings = "FAIRWAY"       // no packet comes here: its comments are the settings
)

// canary is a chain by which kube-proxy notices that its rules were flushed. Sync removes
// it, so that where it is kube-proxy has written after us, and holds the chains now.
const canary = "KUBE-PROXY-CANARY"

// Beginnings of the names of chains of one Service port.
const (
	svc = "KUBE-SVC-" // all endpoints
	svl = "KUBE-SVL-" // those of this node
	ext = "KUBE-EXT-" // who comes from outside
	fw  = "KUBE-FW-"  // who may come in
	sep = "KUBE-SEP-" // one endpoint
)

// ours reports whether a chain is one of those that we write. KUBE-KUBELET-CANARY and
// others of kubelet's are not.
func ours(c chain) bool {
	for _, name := range always(c.table) {
		if c.name == name {
			return true
		}
	}
	return c.table == nat && (perService(c.name) || c.name == canary)
}

func perService(name string) bool {
	for _, prefix := range []string{svc, svl, ext, fw, sep} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// always are the chains that are always there.
func always(table string) []string {
	if table == nat {
		return []string{services, nodeports, postroute, markMasq, markFar, recordings}
	}
	return []string{services, externals, nodeports, forward, firewall}
}

// hash is kube-proxy's: of the Service port, the protocol, and whatever else makes the
// chain's name.
func hash(name service.PortName, proto service.Proto, more ...string) string {
	sum := sha256.Sum256([]byte(name.String() + lower(proto) + strings.Join(more, "")))
	return base32.StdEncoding.EncodeToString(sum[:])[:16]
}

// maxMark is the largest number of an endpoint's chain or of a list: the bits above it
// tell our marks from those of other programs.
const maxMark = numbers.ConnMarkNumber
