# Run in the lab; each line is a run, and its table goes beside its document.
set -u
b=target/release
out=results/2026-11-concepts-rxe
$b/verbmark audit --json $out/audit.json -- send_lat -d rxe0 --loopback --no-tcp -n 1000 > $out/audit.txt
$b/verbmark audit --json $out/audit_post.json -- write_bw -d rxe0 --loopback --no-tcp -s 64 -n 1600 > $out/audit_post.txt
$b/verbmark audit --json $out/audit_list.json -- write_bw -d rxe0 --loopback --no-tcp -s 64 -n 1600 -l 16 > $out/audit_list.txt
$b/write_bw -d rxe0 --loopback -s 64k -n 500 -t 16 --cpu-report --json $out/cpu_report.json > $out/cpu_report.txt
$b/verbmark devices > $out/devices.txt
$b/verbmark devices --json $out/devices.json
$b/reg_mr_lat -d rxe0 -s 4k,64k,1M,16M -n 100 --json $out/reg_mr_lat.json > $out/reg_mr_lat.txt
for test in send_lat write_lat write_imm_lat read_lat; do $b/$test --loopback -d rxe0 --no-tcp -s 4k -n 2000 --json $out/$test.json > $out/$test.txt; done
$b/verbmark serve -d rxe0 2> $out/serve.txt &
sleep 3
$b/verbmark explain 10.7.0.1 -d rxe0 -D 50ms --json $out/explain.json > $out/explain.txt
kill $!
wait $!
uname -r > $out/guest.txt
