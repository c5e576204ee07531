package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/kube"
)

// bindsName is the ConfigMap with the bind ports of all Gateways. Only the controller writes it.
const bindsName = "fairway-gateway-ports"

// The range of bind ports.
const (
	firstBind = 20000
	lastBind  = 29999
)

// A portMap is the bind ports of one Gateway.
type portMap = map[gateway.BindKey]uint16

// binds is the ConfigMap of bind ports: by the UID of a Gateway, which no other Gateway ever has.
type binds struct {
	ports   map[string]portMap
	version string // resourceVersion
}

func bindsKind(s *kube.Store, namespace string) kube.Kind[*corev1.ConfigMap, binds] {
	return kube.Kind[*corev1.ConfigMap, binds]{
		Name: "configmaps", Object: &corev1.ConfigMap{}, Client: kube.From(s.Config().Client.CoreV1().ConfigMaps(namespace)),
		Only: metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, bindsName).String()},
		Trim: convertBinds,
	}
}

// convertBinds reads the bind ports. It leaves out lines that make no sense, and ports that two Gateways have.
func convertBinds(o *corev1.ConfigMap) *binds {
	b := &binds{ports: map[string]portMap{}, version: o.ResourceVersion}
	owners := map[boundPort]int{}
	for uid, line := range o.Data {
		b.ports[uid] = parsePorts(line)
		for key, port := range b.ports[uid] {
			owners[boundPort{key.Proto, port}]++
		}
	}
	for _, ports := range b.ports {
		for key, port := range ports {
			if owners[boundPort{key.Proto, port}] > 1 {
				delete(ports, key)
			}
		}
	}
	return b
}

// A boundPort is a port of the gateway's process.
type boundPort struct {
	proto api.Proto
	port  uint16
}

// parsePorts reads "20000=TCP/80 20001=UDP/53".
func parsePorts(line string) portMap {
	ports := portMap{}
	for one := range strings.FieldsSeq(line) {
		bind, key, _ := strings.Cut(one, "=")
		protocol, port, _ := strings.Cut(key, "/")
		proto, err := api.ParseProto(protocol)
		n, errBind := strconv.ParseUint(bind, 10, 16)
		p, errPort := strconv.ParseUint(port, 10, 16)
		if err == nil && errBind == nil && errPort == nil && n >= firstBind && n <= lastBind && p > 0 {
			ports[gateway.BindKey{Proto: proto, Port: uint16(p)}] = uint16(n)
		}
	}
	return ports
}

// formatPorts writes the bind ports of one Gateway, sorted.
func formatPorts(ports portMap) string {
	var all []string
	for _, key := range sortedKeys(ports) {
		all = append(all, fmt.Sprintf("%d=%v/%d", ports[key], key.Proto, key.Port))
	}
	return strings.Join(all, " ")
}

func sortedKeys(ports portMap) (keys []gateway.BindKey) {
	for key := range ports {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}

func compareKeys(a, b gateway.BindKey) int {
	return cmp.Or(cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Port, b.Port))
}

// followBinds reads the bind ports.
func (o *Objects) followBinds(namespace string) kube.Input {
	o.binds = kube.Open(o.store, bindsKind(o.store, namespace))
	o.binds.Follow(func(api.Name, *binds, *binds, int64) {
		o.mu.Lock()
		o.allBinds = true
		o.mu.Unlock()
		o.Notify()
	})
	return o.binds.Gates(o.Subscription)
}

// bindPorts returns the bind ports by the UID of their Gateway.
func (o *Objects) bindPorts() map[string]portMap {
	for _, b := range o.binds.All() {
		return b.ports
	}
	return nil
}
