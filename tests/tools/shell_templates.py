"""Lines that read, write or run what is denied, with places for spellings. `⏎` stands for the end of a line.

«path» «folder» «name»: of the file, in any spelling; «plain»: its path as it is; «PATH»: in capitals. «word»: the
program, «whole»: with its directory. `⟪…⟫` is quoted as one word.
"""

READING = """
cat «path»
cat docs/a.txt «path»
cat -- «path»
cat < «path»
head -n1 «path»
cat <«path»
cat 0<«path»
cat <> «path»
exec 3< «path»; cat <&3
cat 3<«path» <&3
echo "$(<«path»)"
echo $(cat «path»)
while read -r l; do echo $l; done < «path»
mapfile -t a < «path»; echo ${a[@]}
x=«path»; cat $x
x=«path»; cat "$x"
x=«path» bash -c 'cat $x'
a=(«path»); cat "${a[@]}"
set -- «path»; cat "$1"
set -- «path»; cat "$@"
for f in «path»; do cat "$f"; done
for f in «path»; do cat $f; done
f() { cat "$1"; }; f «path»
f() { cat «path»; }; f
case a in a) cat «path»;; esac
[[ -n a ]] && cat «path»
if true; then cat «path»; fi
( cat «path» )
{ cat «path»; }
! cat «path»
cat «path» | tr a a
tr a a < «path»
cat <(cat «path»)
coproc cat «path»; cat <&${COPROC[0]}
echo «path» | xargs cat
xargs cat <<< «path»
echo «path» > l; xargs -a l cat
xargs -I% cat % <<< «path»
bash -c ⟪cat «path»⟫
eval ⟪cat «path»⟫
eval cat «path»
env cat «path»
timeout 5 cat «path»
command cat «path»
nohup cat «path»
bash -c 'cat "$0"' «path»
cd «folder» && cat «name»
cd «folder»; cat ./«name»
(cd «folder»; cat «name»)
cd docs; cat ../«path»
pushd «folder»; cat «name»
cd «folder»; cat ~+/«name»
cd «folder»; cd -; cat ~-/«name»
cat «folder»/«name»
CDPATH=«folder»; cd .; cat «name»
HOME=«folder»; cat ~/«name»
env -C «folder» cat «name»
find «folder» -name «name» -exec cat {} +
find . -name «name» -exec cat {} \\;
find «path» -exec cat {} +
find . -name '*.pem' -exec cat {} +
find . -name 'k*' -o -name '.e*' | xargs cat
cat -n «path»
ln -s «folder» l; cat l/«name»
mv «folder» l; cat l/«name»
ln -s «path» l; cat l
cp «path» l; cat l
mv «path» l; cat l
grep -h . «path»
grep -hf «path» «path»
grep -f«path» «path»
sed -n p «path»
dd if=«path»
tail -n +1 «path»
sort «path»
tee < «path»
source «path»
. «path»
shopt -s nocaseglob; cat «PATH»
shopt -s extglob; cat @(«path»|x)
bash -O nocaseglob -c ⟪cat «path»⟫
shopt -s dotglob globstar; cat **/*
cat *
cat .*
cat */*
cat .??*
cat [!a]*/k*
cat {«path»,docs/a.txt}
alias c='cat «plain»'; c
shopt -s expand_aliases⏎alias c='cat «plain»'⏎c
IFS=,; x='docs/a.txt,«plain»'; cat $x
x='docs/a.txt «plain»'; cat $x
x='-n «plain»'; cat $x
x=' «plain»'; cat docs/a.txt$x
trap ⟪cat «path»⟫ EXIT
x=../«plain»; cat "docs/$x"
x=/../«plain»; cat docs$x
x=conf/k[e; cat $x]y.pem
awk 1 «path»
wc -l < «path»; cat «path»
cut -c1- «path»
read x < «path»; echo $x
nice cat «path»
stdbuf -o0 cat «path»
echo 'cat «plain»' | bash
bash <<< 'cat «plain»'
bash <<EOF⏎cat «path»⏎EOF
cat <<EOF⏎$(cat «path»)⏎EOF
cat <<< "$(cat «path»)"
mkdir d; cp -r conf d; cat d/«plain»
cp -r . ../copy; cat ../copy/«plain»; rm -r ../copy
grep -rh . «folder»
grep -rh .
grep -Rh . .
grep -h -d recurse . «folder»
grep -hr -e . -- «folder»
cd «folder»; grep -rh .
grep -hf docs/a.txt -f«path» «path»
find «folder» -type f | xargs cat
sed -n '1r «plain»' docs/a.txt
awk '{ while ((getline l < "«plain»") > 0) print l }' docs/a.txt
tee < docs/a.txt y; cp -a «folder» y2; cat y2/«name»
mv «folder» l; cat l/*
"""

WRITING = """
echo x > «path»
echo x >> «path»
echo x >| «path»
echo x &> «path»
echo x >& «path»
echo x &>> «path»
> «path»
echo x 1> «path»
echo x 3> «path» >&3
exec 4> «path»; echo x >&4
exec > «path»; echo x
echo x 1<> «path»
echo x | tee «path»
echo x | tee -a docs/a.txt «path»
cp docs/a.txt «path»; echo x > «path»
cp .env «path»
dd if=conf/x of=«path»
sed -i s/o/x/ «path»
sed -i.b s/o/x/ «path»
sort -r -o «path» docs/a.txt .env
sort -ro«path» docs/a.txt /etc/hostname
echo x > docs/out.txt; cp docs/out.txt «folder»
echo x > docs/out.txt; mv docs/out.txt «folder»/
mv docs/a.txt «path»; echo > «path»
cp docs/link.txt -t «folder»; echo x > «path»
echo x > out.txt; cp -t «folder» out.txt
echo x > out.txt; install out.txt «folder»
cd «folder»; echo x > «name»
cd «folder» && echo x | tee «name»
(cd «folder»; echo x > ./«name»)
cd docs; echo x > ../«path»
x=«path»; echo x > $x
x=«path»; echo x > "$x"
for f in «path»; do echo x > "$f"; done
f() { echo x > "$1"; }; f «path»
echo «path» | xargs tee < /dev/null
bash -c ⟪echo x > «path»⟫
eval ⟪echo x > «path»⟫
{ echo x; } > «path»
if true; then echo x; fi > «path»
while read l; do echo x; done < docs/a.txt > «path»
cat <<EOF > «path»⏎x⏎EOF
truncate -s 0 «path»
touch y; mv y «path»
ln -sf ../docs/a.txt «path»; echo x > «path»
ln -s «folder» l; echo x > l/«name»
tee «path» <<< x
x='docs/a.txt conf/out.txt'; tee $x <<< x
x=../conf/out.txt; echo x > "docs/$x"
find . -name out.txt -exec tee {} +
find . -name «name» -exec sh -c 'echo x > $1' _ {} \\;
find . -maxdepth 0 -fprint «path»
coproc tee «path» <<< x; wait
env tee «path» <<< x
echo x > {«path»,a}
echo x | tee {a,«path»}
echo x | tee conf/o*
echo x > conf/o*
echo x | tee -- «path»
mv «folder» away
mv -- «folder» away
mv -t docs «folder»
cp -t «folder» -r docs; mkdir d; echo x > d/out.txt; cp -r d/. «folder»
cp --target=«folder» docs/a.txt; touch out.txt; cp --target-dir=«folder» out.txt
sort --out=«path» docs/a.txt /etc/hostname
sed -n 'w «plain»' docs/a.txt
sed --in s/o/x/ «path»
awk '{ print > "conf/out.txt" }' .env
install -d «path»/x; touch out.txt; install -t «folder» out.txt
find «folder» -type f -exec truncate -s 0 {} +
"""

RUNNING = """
«word»
«whole»
«word» x
\\«word»
true && «word»
true; «word»
true | «word»
true⏎«word»
( «word» )
{ «word»; }
! «word»
if «word»; then true; fi
while «word»; do break; done
for f in a; do «word»; done
case a in a) «word»;; esac
f() { «word»; }; f
echo $(«word»)
echo `«word»`
cat <(«word»)
echo "${nn:-$(«word»)}"
x=«word»; $x
x=«word»; "$x" a
x=zap; ${x}
a=(«word»); "${a[@]}"
eval «word»
eval ⟪«word»⟫
bash -c «word»
bash -c ⟪«word»⟫
sh -c ⟪exec «word»⟫
bash <<< «word»
echo «word» | bash
echo «word» | sh -s
bash <<EOF⏎«word»⏎EOF
env «word»
env a=1 «word»
env -i PATH="$PATH" «word»
env -S «word»
env -S'«word»'
command «word»
builtin eval «word»
exec «word»
nohup «word»
timeout 5 «word»
nice -n 5 «word»
setsid -w «word»
stdbuf -o0 «word»
time «word»
coproc «word»; wait
echo a | xargs «word»
echo «word» | xargs -I% %
echo zap | xargs env
xargs -n1 «word» <<< a
find docs -name a.txt -exec «word» {} \\;
find docs -maxdepth 0 -ok «word» {} \\; <<< y
find docs -exec sh -c «word» \\;
setpriv «word»
setpriv --no-new-privs «word»
prlimit --nofile=99 «word»
setarch -R «word»
bash -O extglob -c «word»
bash +O extglob -c «word»
bash -oc pipefail «word»
bash -o pipefail -ec «word»
trap «word» EXIT
trap -- «word» 0
alias a=«word»⏎a
shopt -s expand_aliases; alias a=«word»⏎a
source <(echo «word»)
. /dev/stdin <<< «word»
x='zap a'; $x
x=a; x=z${x}p; $x
set -- «word»; $1
set -- «word»; "$@"
[[ a == a ]] && «word»
true & «word»
true |& «word»
x=$(«word»)
x=`«word»`; echo
export x=$(«word»)
a[$(«word»)]=1
(( a[$(«word»)] ))
echo ${x:-`«word»`}
cat <<EOF⏎$(«word»)⏎EOF
cat <<< $(«word»)
echo x > $(«word»)
cat < <(«word»)
PATH=../bin «word»
> l «word»
2>&1 «word»
«word» > l
a=1 «word»
printf -v y %s "$(«word»)"
awk 'BEGIN { print }' ; «word»
hash -p ../bin/zap q; q
PROMPT_COMMAND=«word»; «word»
mapfile -C «word» -c 1 a <<< b
env - PATH="$PATH" «word»
env -i - PATH="$PATH" «word»
env -- - PATH="$PATH" «word»
find docs -maxdepth 0 -exec env - PATH=../bin «word» {} +
bash -c -- «word»
bash -c -e «word»
sh -c -- «word»
bash -ec - «word»
bash +O extglob -c «word»
eval -- «word»
readarray -tC «word» -c 1 a <<< b
trap -- ⟪-x; «word»⟫ EXIT
timeout --sig=KILL 5 «word»
nice --adj=5 «word»
stdbuf --out=0 «word»
xargs --max-a=1 «word» <<< a
xargs --arg-f=docs/a.txt «word»
sort --compress-prog=«word» docs/a.txt
awk 'BEGIN { system("zap") }'
awk 'BEGIN { "zap" | getline }'
sed '1e zap' docs/a.txt
sed 's/.*/zap/e' docs/a.txt
{«word»,a}
../bin/z?p
../bin/[z]ap
../*/zap
./../bin/«word»
"""
