package cluster_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// rebootPods are, on node 2: pods to which a policy denies everything, whose init container and container send from
// their first instant, and one that does the same and is not isolated. On node 1: a pod that prints what comes, and one that
// sends to all addresses that pods of node 2 may get.
const rebootPods = `
apiVersion: v1
kind: Namespace
metadata: {name: reboot}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: reboot}
spec: {podSelector: {matchLabels: {app: denied}}, policyTypes: [Ingress, Egress]}
---
apiVersion: v1
kind: Pod
metadata: {name: sink, namespace: reboot}
spec:
  nodeName: node-1
  terminationGracePeriodSeconds: 0
  containers:
  - {name: sink, image: ubuntu, command: [bash, -c, "nc -4klu 9000 & nc -6klu 9000 & wait"]}
`

// sender is a pod of rebootPods that sends its name and when it started.
const sender = `---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: reboot, labels: {app: %[2]s}}
spec:
  nodeName: node-2
  terminationGracePeriodSeconds: 0
  initContainers:
  - {name: first, image: ubuntu, command: [bash, -c, "for i in {1..100}; do echo %[1]s >/dev/udp/%[3]s/9000; echo %[1]s >/dev/udp/%[4]s/9000; done; true"]}
  containers:
  - name: send
    image: ubuntu
    command: [bash, -c, "now=$(date +%%s%%N); for i in {1..60000}; do echo %[1]s 4 $now >/dev/udp/%[3]s/9000; echo %[1]s 6 $now >/dev/udp/%[4]s/9000; sleep 0.02; done"]
`

// flood is the pod that sends to all addresses.
const flood = `---
apiVersion: v1
kind: Pod
metadata: {name: flood, namespace: reboot}
spec:
  nodeName: node-1
  terminationGracePeriodSeconds: 0
  containers:
  - {name: send, image: ubuntu, command: [bash, -c, "for i in {1..60000}; do for a in %s; do echo x >/dev/udp/$a/9; done; sleep 0.02; done"]}
`

const deniedPods = 3

// testReboot reboots node 2, and again as often as FAIRWAY_REBOOTS says, while pods of it send and are sent to. What its
// kernel held is gone, what is on its disk is not. No packet comes from a pod to which everything is denied, and none to it, and no two
// pods have an address.
func (l *lab) testReboot() {
	l.input(rebootPods, "kubectl", "apply", "-f", "-")
	l.run("kubectl", "-n", "reboot", "wait", "--for=condition=Ready", "pod/sink", "--timeout=60s")
	sink := strings.Fields(l.run("kubectl", "-n", "reboot", "get", "pod", "sink", "-o", "jsonpath={.status.podIPs[*].ip}"))
	if len(sink) != 2 {
		l.Fatalf("the sink has the addresses %v", sink)
	}
	pods := []string{"open"}
	text := fmt.Sprintf(sender, "open", "open", sink[0], sink[1]) + fmt.Sprintf(flood, strings.Join(l.firstAddrs("node-2", 16), " "))
	for i := range deniedPods {
		pods = append(pods, fmt.Sprint("denied-", i))
		text += fmt.Sprintf(sender, pods[i+1], "denied", sink[0], sink[1])
	}
	l.input(text, "kubectl", "apply", "-f", "-")
	l.sending(pods)
	times, _ := strconv.Atoi(os.Getenv("FAIRWAY_REBOOTS")) // make test-policy
	for i := range max(1, times) {
		l.reboot()
		l.sending(pods)
		l.judge(i+2, pods[1:])
	}
}

// firstAddrs are the first addresses of a node's pods, of both families.
func (l *lab) firstAddrs(node string, count int) (all []string) {
	for cidr := range strings.FieldsSeq(l.run("kubectl", "get", "node", node, "-o", "jsonpath={.spec.podCIDRs[*]}")) {
		addr := netip.MustParsePrefix(cidr).Addr()
		for range count {
			addr = addr.Next()
			all = append(all, addr.String())
		}
	}
	return all
}

// reboot leaves something in node 2's kernel and on its disk, and looks for it after a reboot.
func (l *lab) reboot() {
	on := []string{"node", "2", "--"}
	boot := l.run("kubectl", "get", "node", "node-2", "-o", "jsonpath={.status.nodeInfo.bootID}")
	l.run(append(on, "sh", "-ec", "nft add table inet left; ip link add left type veth peer name left2; ip route add blackhole 203.0.113.77; touch /run/left /var/lib/kubelet/left")...)
	l.run("restart-node", "2")
	left := l.run(append(on, "sh", "-c", "nft list tables | grep left; ip -o link show left 2>&-; ip route | grep 203.0.113.77; ls /run/left 2>&-; ls /var/lib/kubelet/left")...)
	if left != "/var/lib/kubelet/left\n" {
		l.Errorf("of what was made on the node, after its reboot there is %q", left)
	}
	l.eventually("rebooted", "kubectl", "get", "events", "--field-selector", "involvedObject.name=node-2,reason=Rebooted", "-o", "jsonpath={.items[*].message}")
	if now := l.run("kubectl", "get", "node", "node-2", "-o", "jsonpath={.status.nodeInfo.bootID}"); now == boot || now == "" {
		l.Errorf("the boot ID is %q, and was %q", now, boot)
	}
}

// sent are the datagrams that a pod has sent by each family since it started, and that came to it, as its kernel counts them.
func (l *lab) sent(pod string) (out [2]int, in int, err error) {
	text, err := l.try("kubectl", "-n", "reboot", "exec", pod, "-c", "send", "--", "cat", "/proc/net/snmp", "/proc/net/snmp6")
	if err != nil {
		return out, 0, fmt.Errorf("%w: %s", err, text)
	}
	var names []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case fields[0] == "Udp:" && names == nil:
			names = fields
		case fields[0] == "Udp:":
			for i, name := range names[1:] {
				n, _ := strconv.Atoi(fields[i+1])
				if name == "OutDatagrams" {
					out[0] = n
				} else if name == "InDatagrams" || name == "NoPorts" {
					in += n
				}
			}
		case len(fields) == 2 && slices.Contains([]string{"Udp6InDatagrams", "Udp6NoPorts", "Udp6OutDatagrams"}, fields[0]):
			n, _ := strconv.Atoi(fields[1])
			if fields[0] == "Udp6OutDatagrams" {
				out[1] = n
			} else {
				in += n
			}
		}
	}
	return out, in, nil
}

// sending waits until all pods run and have sent, and the one that is not isolated was sent to.
func (l *lab) sending(pods []string) {
	for _, pod := range pods {
		for end := time.Now().Add(90 * time.Second); ; time.Sleep(200 * time.Millisecond) {
			out, in, err := l.sent(pod)
			if err == nil && min(out[0], out[1]) > 150 && (pod != "open" || in > 0) {
				break
			}
			if time.Now().After(end) {
				l.Fatalf("%s has sent %v datagrams, and %d came (%v)\n%s", pod, out, in, err, l.run("kubectl", "get", "pods", "-A", "-o", "wide"))
			}
		}
	}
}

// judge says what came of all that was sent by now, when the pods have started that many times.
func (l *lab) judge(starts int, denied []string) {
	for _, pod := range denied {
		if _, in, err := l.sent(pod); err != nil || in > 0 {
			l.Errorf("%d datagrams came to %s (%v)", in, pod, err)
		}
	}
	var came string
	for end := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		came = l.run("kubectl", "-n", "reboot", "logs", "sink")
		seen := map[string]bool{}
		for line := range strings.Lines(came) {
			seen[line] = true
		}
		delete(seen, "open\n") // of the init container
		if len(seen) >= 2*starts {
			break
		}
		if time.Now().After(end) {
			l.Fatalf("from a pod that nothing isolates came, after %d starts: %v", starts, seen)
		}
	}
	if n := strings.Count(came, "denied"); n > 0 {
		l.Errorf("%d datagrams came from pods to which everything is denied", n)
	}
	l.addressesGiven("2")
}

// addressesGiven waits until the store of a node's plugin has the addresses of its pods, once each, and no others; and its
// links are as many.
func (l *lab) addressesGiven(node string) {
	const template = `{range .items[*]}{.spec.hostNetwork}{range .status.podIPs[*]} {.ip}{end}{"\n"}{end}`
	var want, have, links []string
	for end := time.Now().Add(90 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		want = nil
		for line := range strings.Lines(l.run("kubectl", "get", "pods", "-A", "--field-selector", "spec.nodeName=node-"+node, "-o", "jsonpath="+template)) {
			if !strings.HasPrefix(line, "true") { // on the node's network
				want = append(want, strings.Fields(line)...)
			}
		}
		have = strings.Fields(l.run("node", node, "--", "sh", "-c", "cd /run/fairway/cni/node-"+node+"/fairway && ls | grep '[.:]' | grep -v last_reserved"))
		links = strings.Fields(l.run("node", node, "--", "sh", "-c", "ls /sys/class/net | grep ^fw[0-9a-f]"))
		slices.Sort(want)
		slices.Sort(have)
		if slices.Equal(want, have) && 2*len(links) == len(want) {
			return
		}
		if time.Now().After(end) {
			l.Fatalf("pods have the addresses\n%v, the store\n%v, and there are the links %v", want, have, links)
		}
	}
}
