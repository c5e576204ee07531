// Package tenants makes the hostile objects that are too large for files: as large as the API server takes them, which
// is 1.5 MB of one object in etcd. Those that are small are the YAML files beside.
//
//	All ─→ Set: what must happen, and the objects ─→ atlimits (a program): YAML ─→ kubectl create
//	                                              └→ lab/cluster TestTenantsAtLimits: a lab with real agents
//
// It promises that each Set is the same at each call.
package tenants

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// A Set is what one tenant makes.
type Set struct {
	Name string
	Must string // happen
	// Event is the reason of the event that the author gets; empty: none.
	Event string
	// In reports whether CI has the time for it.
	InCI bool
	make func(add func(object))
}

type object = map[string]any

// Write writes the objects as YAML documents, one after the other.
func (s Set) Write(w io.Writer) error {
	var failed error
	s.make(func(o object) {
		text, err := json.Marshal(o)
		if err == nil && failed == nil {
			_, err = fmt.Fprintf(w, "---\n%s\n", text)
		}
		if failed == nil {
			failed = err
		}
	})
	return failed
}

// All are the sets, the cheapest first.
var All = []Set{
	{"annotations", "Annotations of 256 KB on 8 Services are short messages.", "InvalidAnnotation", true, annotations},
	{"selector", "Services that ask for weights and for egress with a selector of 15,000 labels hold up nobody.", "", false, selectors},
	{"service-ports", "Of a Service of 9,000 ports the first 5,000 are served.", "TooManyPorts", true, servicePorts},
	{"endpoints", "Of 100 EndpointSlices of 1,000 endpoints with 100 ports, 10 million ports of endpoints, a Service gets 10,000.", "TooManyEndpoints", false, endpoints},
	{"slice-ports", "EndpointSlices of 1,000 endpoints with 20,000 ports, for a Service of 5,000 ports, make 10,000 ports of endpoints.", "TooManyEndpoints", false, slicePorts},
	{"headless", "A headless Service of 100,000 endpoints keeps DNS from answering nobody.", "", false, headless},
	{"long-names", "Names of nodes, zones and pods as long as the API allows, of 20,000 endpoints, take memory, and no more than there is.", "", false, longNames},
	{"policy-blocks", "A NetworkPolicy of 25,000 blocks allows nothing, and costs others nothing.", "NetworkPolicyLimit", false, policyBlocks},
	{"policy-selectors", "A NetworkPolicy whose selectors list 40,000 values allows nothing, and costs others nothing.", "NetworkPolicyLimit", true, policySelectors},
	{"policy-ports", "A NetworkPolicy of 60,000 ports allows nothing, and costs others nothing.", "NetworkPolicyLimit", false, policyPorts},
	{"policies", "1,000 NetworkPolicies of 400 peers each allow what the cheapest ten ask for.", "NetworkPolicyLimit", false, policies},
	{"policy-addresses", "A NetworkPolicy of 3,900 blocks of one address changes no other namespace: one of 30 pods, with 92 elements, keeps 92.", "", false, policyAddresses},
	{"policy-excepts", "A NetworkPolicy of 1,990 blocks, each with all addresses but one, is one element and 10 ms of an agent.", "", false, policyExcepts},
	{"policy-names", "Pods that give one name to 40 ports change no other namespace: a rule with that name for 50 pods has 50 grants, and keeps 50.", "", false, policyNames},
	{"pod-labels", "Pods with 8,000 labels each, which a NetworkPolicy selects, cost others nothing.", "", false, podLabels},
	{"host-ports", "A pod that asks for 3,000 ports of its node holds up no other pod.", "", false, hostPorts},
}

func meta(name string, more ...any) object {
	m := object{"name": name}
	for i := 0; i+1 < len(more); i += 2 {
		m[more[i].(string)] = more[i+1]
	}
	return m
}

func service(metadata, spec object) object {
	return object{"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
}

func ports(n int) (all []object) {
	for i := range n {
		all = append(all, object{"name": fmt.Sprintf("p%d", i+1), "port": i + 1})
	}
	return all
}

// words are n different labels of a size.
func words(n, size int) map[string]string {
	all := make(map[string]string, n)
	for i := range n {
		all[fmt.Sprintf("label-%05d", i)] = strings.Repeat("v", size)
	}
	return all
}

func annotations(add func(object)) {
	const allowed = 256 << 10 // of all keys and values together
	keys := []string{"fairway.net/balance", "fairway.net/weights", "fairway.net/egress", "fairway.net/no-such"}
	for i := range 8 {
		all := map[string]string{}
		for _, k := range keys {
			all[k] = strings.Repeat("x", allowed/len(keys)-len(k))
		}
		add(service(meta(fmt.Sprintf("long-%d", i), "annotations", all), object{"ports": ports(1)}))
	}
}

func selectors(add func(object)) {
	for i, annotation := range []object{{"fairway.net/weights": "true"}, {"fairway.net/egress": "pods"}} {
		add(service(meta(fmt.Sprintf("selector-%d", i), "annotations", annotation),
			object{"ports": ports(1), "selector": words(15_000, 63), "type": "LoadBalancer", "loadBalancerClass": "example.org/none", "allocateLoadBalancerNodePorts": false}))
	}
}

func servicePorts(add func(object)) {
	add(service(meta("ports"), object{"ports": ports(9_000), "sessionAffinity": "ClientIP"}))
}

// slice is an EndpointSlice of 1,000 endpoints; change changes each.
func slice(of string, i int, ports []object, change func(k int, endpoint object)) object {
	var all []object
	for k := range 1_000 {
		n := i*1_000 + k
		e := object{"addresses": []string{fmt.Sprintf("10.%d.%d.%d", 128+n>>16, n>>8&255, n&255)}}
		if change != nil {
			change(n, e)
		}
		all = append(all, e)
	}
	return object{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "ports": ports, "endpoints": all,
		"metadata": meta(fmt.Sprintf("%s-%d", of, i), "labels", object{"kubernetes.io/service-name": of}),
	}
}

func endpoints(add func(object)) {
	add(service(meta("endpoints"), object{"ports": ports(100)}))
	for i := range 100 {
		add(slice("endpoints", i, ports(100), nil))
	}
}

func slicePorts(add func(object)) {
	add(service(meta("slice-ports"), object{"ports": ports(5_000)}))
	for i := range 10 {
		add(slice("slice-ports", i, ports(20_000), nil))
	}
}

func headless(add func(object)) {
	add(service(meta("headless"), object{"ports": ports(1), "clusterIP": "None"}))
	for i := range 100 {
		s := slice("headless", i, ports(1), nil)
		s["metadata"].(object)["labels"].(object)["service.kubernetes.io/headless"] = ""
		add(s)
	}
}

func longNames(add func(object)) {
	add(service(meta("long-names"), object{"ports": ports(1)}))
	for i := range 20 {
		add(slice("long-names", i, ports(1), func(n int, e object) {
			long := func(size int) string { return fmt.Sprintf("%0*d", size, n) }
			e["nodeName"], e["zone"], e["hostname"] = long(253), long(63), long(63)
			e["targetRef"] = object{"kind": "Pod", "name": long(253)}
			e["hints"] = object{"forZones": []object{{"name": long(63)}}}
		}))
	}
}

func policy(name string, spec object) object {
	return object{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta(name), "spec": spec}
}

// peers is a policy's spec for all pods of the namespace.
func peers(from, ports []object) object {
	return object{"podSelector": object{}, "policyTypes": []string{"Ingress"}, "ingress": []object{{"from": from, "ports": ports}}}
}

func policyBlocks(add func(object)) {
	var from []object
	for n := range 25_000 {
		from = append(from, object{"ipBlock": object{"cidr": fmt.Sprintf("10.%d.%d.%d/32", 128+n>>16, n>>8&255, n&255)}})
	}
	add(policy("blocks", peers(from, nil)))
}

func policySelectors(add func(object)) {
	var values []string
	for i := range 20_000 {
		values = append(values, fmt.Sprintf("value-%05d", i))
	}
	in := object{"matchExpressions": []object{{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": values}}}
	add(policy("selectors", peers([]object{{"namespaceSelector": in, "podSelector": in}}, nil)))
}

func policyPorts(add func(object)) {
	var all []object
	for i := range 60_000 {
		all = append(all, object{"port": i + 1})
	}
	add(policy("ports", peers([]object{{"namespaceSelector": object{}}}, all)))
}

func policies(add func(object)) {
	for i := range 1_000 {
		var from []object
		for k := range 400 {
			n := i*400 + k
			from = append(from, object{"ipBlock": object{"cidr": fmt.Sprintf("10.%d.%d.%d/32", 128+n>>16, n>>8&255, n&255)}})
		}
		add(policy(fmt.Sprintf("many-%d", i), peers(from, nil)))
	}
}

// egress is a policy's spec for all pods of the namespace.
func egress(to []object) object {
	return object{"podSelector": object{}, "policyTypes": []string{"Egress"}, "egress": []object{{"to": to}}}
}

// sleeper is a pod of node-1, whose policies the node's agent compiles.
func sleeper(name string, ports ...object) object {
	var all []object
	for i, port := range append(ports, nil) {
		c := object{"name": fmt.Sprintf("c%d", i), "image": "busybox", "command": []string{"sleep", "600"}}
		if port != nil {
			c["ports"] = []object{port}
		}
		all = append(all, c)
	}
	return pod(meta(name), object{"nodeName": "node-1", "containers": all})
}

func policyAddresses(add func(object)) {
	var to []object
	for n := range 3_900 {
		to = append(to, object{"ipBlock": object{"cidr": fmt.Sprintf("20.0.%d.%d/32", n>>8&255, n&255)}})
	}
	add(sleeper("addresses"))
	add(policy("addresses", egress(to)))
}

func policyExcepts(add func(object)) {
	var to []object
	for n := range 1_990 {
		to = append(to, object{"ipBlock": object{"cidr": "0.0.0.0/0", "except": []string{fmt.Sprintf("20.0.%d.%d/32", n>>8&255, n&255)}}})
	}
	add(sleeper("excepts"))
	add(policy("excepts", egress(to)))
}

func policyNames(add func(object)) {
	for i := range 4 {
		var ports []object
		for k := range 10 { // a name is unique within a container only
			ports = append(ports, object{"name": "http", "containerPort": 1_000 + 10*i + k})
		}
		add(sleeper(fmt.Sprintf("names-%d", i), ports...))
	}
}

func pod(metadata, spec object) object {
	return object{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
}

func podLabels(add func(object)) {
	for i := range 20 {
		add(pod(meta(fmt.Sprintf("labels-%d", i), "labels", words(8_000, 63)), // no scheduler has that name: it does not run
			object{"schedulerName": "none", "containers": []object{{"name": "c", "image": "busybox"}}}))
	}
	add(policy("labels", peers([]object{{"podSelector": object{"matchLabels": words(1_000, 63)}}}, nil)))
}

func hostPorts(add func(object)) {
	var all []object
	for i := range 3_000 {
		all = append(all, object{"containerPort": 1 + i, "hostPort": 20_000 + i})
	}
	add(pod(meta("host-ports"), object{"nodeName": "node-1", "containers": []object{
		{"name": "c", "image": "busybox", "command": []string{"sleep", "600"}, "ports": all},
	}}))
}
